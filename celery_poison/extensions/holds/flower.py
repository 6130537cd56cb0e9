"""Flower's lines and buttons of what is paused, and of workers that suspended themselves (WAS-6, WAS-7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import Celery

from celery_poison.desk.overview import Overview
from celery_poison.desk.store import Store
from celery_poison.extensions.holds.desk import HoldDesk
from celery_poison.extensions.holds.pauses import Scope
from celery_poison.flower.extension_parts import FlowerPart, HeldBack, HoldKind


def held_back(seen: Overview) -> Iterator[HeldBack]:
    for pause in seen.panel("paused") or ():
        story = {
            Scope.QUEUE: f"No worker consumes queue {pause.name}",
            Scope.TASK: f"Messages of task {pause.name} do not begin",
            Scope.ENDPOINT: f"{pause.worker} does not consume queue {pause.name}",
            Scope.VERSION: f"Workers of {pause.version} do not begin task {pause.name}: it kills them",
        }[pause.scope]
        by = pause.actor or ("the deploy guard" if pause.scope is Scope.VERSION else "itself")
        yield HeldBack(pause.scope, pause.name, pause.worker, story, by, pause.note, pause.since)


def _pause_queue(app: Celery, queue: str, of: str, **how: Any) -> object:
    return HoldDesk(Store(app)).pause_queue(queue, **how)


def _pause_task(app: Celery, task: str, of: str, **how: Any) -> object:
    return HoldDesk(Store(app)).pause_task(task, **how)


def _resume_queue(app: Celery, queue: str, of: str, **how: Any) -> object:
    return HoldDesk(Store(app)).resume_queue(queue, worker=of, **how)


def _resume_task(app: Celery, task: str, of: str, **how: Any) -> object:
    return HoldDesk(Store(app)).resume_task(task, **how)


PART = FlowerPart(
    held_back=held_back,
    holds={
        str(Scope.QUEUE): HoldKind(_resume_queue, _pause_queue, "no worker consumes the queue"),
        str(Scope.TASK): HoldKind(_resume_task, _pause_task, "no message begins of the task"),
        str(Scope.ENDPOINT): HoldKind(_resume_queue),
        str(Scope.VERSION): HoldKind(_resume_task),
    },
)
