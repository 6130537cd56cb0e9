"""What is paused, and keeps messages in place: a queue, a task, or one worker's consumption of one queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from celery_poison.basics.text import when
from celery_poison.errors import ConfigurationError
from celery_poison.model import Record
from celery_poison.rules.blocks import in_force, parts_of


class Scope(StrEnum):
    """What a pause is about."""

    QUEUE = "queue"
    """No worker consumes it."""
    TASK = "task"
    """Its messages are parked."""
    ENDPOINT = "endpoint"
    """One worker does not consume it: it suspended itself."""
    VERSION = "version"
    """Workers of one version of the user's code park its messages: they killed its first runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Record):
    """One pause.

    Attributes:
        name: of the queue, or of the task.
        worker: name of the node, of an endpoint.
        since, until: seconds since 1970 by Redis' clock; ``until`` None: until a person resumes it.
        actor: the person who paused it; empty of an endpoint and of a version.
        version: of the user's code, for which alone the task is paused.
    """

    scope: Scope
    name: str
    worker: str = ""
    since: float = 0.0
    until: float | None = None
    actor: str = ""
    note: str = ""
    version: str = ""

    @property
    def field(self) -> str:
        """Where in the hash it stands."""
        return field_of(self.scope, self.name, self.worker or self.version)

    @property
    def story(self) -> str:
        """It in a sentence."""
        if self.scope is Scope.VERSION:
            return f"{self.version} kills {self.name} ({self.note}): paused"
        if self.scope is Scope.ENDPOINT:
            return f"{self.worker} suspended itself from queue {self.name}: {self.note}"
        return f"{self.scope} {self.name} is paused by {self.actor}" + (f": {self.note}" if self.note else "")

    @property
    def line(self) -> str:
        """It in a word or two, for ``status``."""
        if self.scope is Scope.VERSION:
            return f"task {self.name} since {when(self.since)} for {self.version}, which kills it"
        if self.until is not None:
            return f"queue {self.name} by {self.worker} itself until {when(self.until)}: {self.note}"
        note = f": {self.note}" if self.note else ""
        return f"{self.scope} {self.name} since {when(self.since)} by {self.actor}{note}"

    @classmethod
    def read(cls, field: str, text: str | bytes) -> Self:
        """Return the pause that one field of the hash holds.

        Raises:
            ValueError: it is not to be understood; a newer version may have written it.
        """
        scope, name, values, known = parts_of(field, text)
        worker, name = name.split(" ", 1) if scope == Scope.ENDPOINT else ("", name)
        version = str(values.get("version") or "") if scope == Scope.VERSION else ""
        name = name.removeprefix(f"{version} ")
        return cls(scope=Scope(scope), name=name, worker=worker, version=version, **known)


def field_of(scope: Scope, name: str, of: str = "") -> str:
    """Return where in the hash a pause stands; ``of``: its worker, or its version."""
    return f"{scope}:{of} {name}" if of else f"{scope}:{name}"


def read_pauses(
    raw: Mapping[str, str | bytes], now: float = 0.0
) -> tuple[dict[str, Pause], list[ConfigurationError]]:
    """Return the pauses that hold at ``now`` (by field, the oldest first), and why the rest is not usable."""
    pauses, complaints = in_force(Pause.read, raw, now, "pauses in Redis, {} is ignored: it is no pause")
    return dict(sorted(pauses.items(), key=lambda pause: pause[1].since)), complaints
