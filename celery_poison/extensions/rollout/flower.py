"""Flower's lines of messages that wait for workers that know their task (NEW-29)."""

from __future__ import annotations

from collections.abc import Iterator

from celery_poison.desk.overview import Overview
from celery_poison.flower.extension_parts import FlowerPart, HeldBack


def held_back(seen: Overview) -> Iterator[HeldBack]:
    for row in seen.panel("rollout") or ():
        note = "other workers of its queue do not know the task"
        yield HeldBack("rollout", row.task, "", row.waits, "a rolling deploy", note, can_go=False)


PART = FlowerPart(held_back=held_back)
