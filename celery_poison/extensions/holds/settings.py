"""Settings of suspensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from celery_poison.rules import values
from celery_poison.settings import Section, seconds, setting, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldsSettings(Section):
    """Of suspensions."""

    queue_options: ClassVar[tuple[str, ...]] = ("suspend_after_failures", "suspend_failure_ratio")

    suspend_after_failures: int = whole(
        0,
        0,
        "Failures in a row, over its whole pool, after which a worker stops consuming a queue. 0: never.",
        "failures",
    )
    suspend_failure_ratio: float | None = setting(
        None,
        values.share,
        "Share of failures among a worker's last 10 runs of a queue at which it stops consuming it.",
    )
    suspend_for: float = seconds(
        60.0, 0.1, "How long it does not consume that queue. Then one message is tried."
    )
    suspend_share: float = setting(
        0.5, values.number(0), "Share of a queue's workers that may be suspended at a time; one always may."
    )


SETTINGS = HoldsSettings
