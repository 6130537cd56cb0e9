"""What is paused, as Redis keeps it: a queue, a task, or one worker's consumption of one queue.

A pause keeps messages in place. Nothing here knows Redis or Celery.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from celery_poison.blocks import parts_of
from celery_poison.errors import ConfigurationError


class Scope(StrEnum):
    """What a pause is about."""

    QUEUE = "queue"
    """No worker consumes it."""
    TASK = "task"
    """Its messages are parked."""
    ENDPOINT = "endpoint"
    """One worker does not consume it: it suspended itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One pause.

    Attributes:
        name: of the queue, or of the task.
        worker: name of the node, of an endpoint.
        since, until: seconds since 1970 by Redis' clock; ``until`` None: until somebody resumes it.
        actor: who paused it; empty of an endpoint.
    """

    scope: Scope
    name: str
    worker: str = ""
    since: float = 0.0
    until: float | None = None
    actor: str = ""
    note: str = ""

    @property
    def field(self) -> str:
        """Where in the hash it stands."""
        return field_of(self.scope, self.name, self.worker)

    @property
    def story(self) -> str:
        """It in a sentence."""
        if self.scope is Scope.ENDPOINT:
            return f"{self.worker} suspended itself from queue {self.name}: {self.note}"
        return f"{self.scope} {self.name} is paused by {self.actor}" + (f": {self.note}" if self.note else "")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, field: str, text: str | bytes) -> Self:
        """Return the pause that one field of the hash holds.

        Raises:
            ValueError: it is not to be understood; a newer version may have written it.
        """
        scope, name, told = parts_of(field, text)
        since, until = (float(told.get(word) or 0) / 1000 for word in ("since_ms", "until_ms"))
        if not math.isfinite(since + until):
            raise ValueError(text)
        words = {word: str(told.get(word) or "") for word in ("actor", "note")}
        worker, name = name.split(" ", 1) if scope == Scope.ENDPOINT else ("", name)
        return cls(scope=Scope(scope), name=name, worker=worker, since=since, until=until or None, **words)


def field_of(scope: Scope, name: str, worker: str = "") -> str:
    """Return where in the hash a pause stands."""
    return f"{scope}:{worker} {name}" if worker else f"{scope}:{name}"


def read_pauses(
    raw: Mapping[str, str | bytes], now: float = 0.0
) -> tuple[dict[str, Pause], list[ConfigurationError]]:
    """Return the pauses that hold at ``now`` (by field, the oldest first), and why the rest is not usable."""
    pauses, complaints = [], []
    for field, text in raw.items():
        try:
            pauses.append(Pause.read(field, text))
        except (ValueError, TypeError, OverflowError, RecursionError):
            complaints.append(ConfigurationError(f"pauses in Redis, {field} is ignored: it is no pause"))
    holds = (pause for pause in pauses if pause.until is None or pause.until > now)
    return {pause.field: pause for pause in sorted(holds, key=lambda pause: pause.since)}, complaints
