"""The setting of who is told at the conviction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from celery_poison.rules import values
from celery_poison.settings import Section, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TellingSettings(Section):
    """Of callers that are told."""

    task_options: ClassVar[tuple[str, ...]] = ("tell",)

    tell: Literal["decision", "conviction"] = setting(
        "decision",
        values.one_of("decision", "conviction"),
        "When a caller gets the failure of a message in quarantine: 'decision', once a person fails it;"
        " 'conviction', at once.",
    )


SETTINGS = TellingSettings
