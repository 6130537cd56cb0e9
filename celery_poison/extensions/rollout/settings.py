"""The setting of messages whose task only other workers know."""

from __future__ import annotations

from dataclasses import dataclass

from celery_poison.settings import Section, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings(Section):
    """Of rolling deploys."""

    unknown_task_wait: float = seconds(
        3600.0,
        0,
        "How long a message whose task its worker does not know waits for workers that do. 0: not at all.",
    )


SETTINGS = RolloutSettings
