"""How many messages may wait in a queue, as the settings say (MSG-1)."""

from __future__ import annotations

from dataclasses import dataclass

from celery_poison.settings import Settings

#: Share of a limit from which on people are warned (MSG-7).
WARN_AT = 0.8


@dataclass(frozen=True, slots=True)
class Limit:
    """How many messages may wait in a queue, and whether the oldest ones make room for new ones."""

    most: int
    discards_old: bool

    def is_near(self, waiting: int) -> bool:
        """Whether so many are enough for a warning (MSG-7)."""
        return waiting >= WARN_AT * self.most


def limit_of(settings: Settings, queue: str) -> Limit | None:
    """Return the limit of a queue, or of the quarantine by its name; None where it has none (MSG-1)."""
    own = (settings.queues or {}).get(queue, {})
    most = own.get("max_messages", settings.max_messages)
    behavior = own.get("max_messages_behavior", settings.max_messages_behavior)
    return None if most is None else Limit(most, behavior == "discard_old")


def are_set(settings: Settings) -> bool:
    """Whether any queue may have a limit."""
    options = (settings.queues or {}).values()
    return settings.max_messages is not None or any("max_messages" in each for each in options)
