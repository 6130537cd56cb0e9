"""What is paused, and keeps messages in place: a queue, a task, or one worker's consumption of one queue.

Also for the deploy guard, whose pauses are of one version. ``LedgerUnavailable``: Redis is away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from celery_poison.basics.text import when
from celery_poison.errors import ConfigurationError, MessageNotFound
from celery_poison.ledger import Ledger
from celery_poison.ledger.policies import VersionedCopy, read
from celery_poison.ledger.scripts import Code
from celery_poison.model import Record
from celery_poison.rules.blocks import in_force, parts_of


class Scope(StrEnum):
    """The scope of a pause."""

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
        """The pause as a sentence."""
        if self.scope is Scope.VERSION:
            return f"{self.version} kills {self.name} ({self.note}): paused"
        if self.scope is Scope.ENDPOINT:
            return f"{self.worker} suspended itself from queue {self.name}: {self.note}"
        return f"{self.scope} {self.name} is paused by {self.actor}" + (f": {self.note}" if self.note else "")

    @property
    def line(self) -> str:
        """The pause in a word or two, for ``status``."""
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


def holding(ledger: Ledger) -> list[Pause]:
    """Return the pauses in force at this moment, the oldest first."""
    _, raw, now = read(ledger, ledger.keys.paused)
    return [*read_pauses(raw, now)[0].values()]


def paused_versions(ledger: Ledger) -> list[Pause]:
    """Return the pauses for one version, the oldest first."""
    return [pause for pause in holding(ledger) if pause.scope is Scope.VERSION]


class Paused(VersionedCopy[Pause]):
    """A copy of what is paused.

    Args:
        complain: takes errors about entries that cannot be read.
        code_version: of who asks: pauses of other versions do not count.
    """

    def __init__(
        self,
        ledger: Ledger,
        complain: Callable[[Exception], object] = lambda error: None,
        code_version: str = "",
    ) -> None:
        super().__init__(ledger, ledger.keys.paused, read_pauses, complain)
        self._again = ledger, complain, code_version
        self._code_version = code_version

    def as_of_now(self) -> Paused:
        """Return a new copy; this one stays as it is, so that its owner still hears what has changed.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        newest = Paused(*self._again)
        newest.refresh()
        return newest

    def suspensions_of(self, node: str) -> dict[str, float]:
        """Return from which queues a node has suspended itself: queue -> seconds, as of the last change."""
        mine = (pause for pause in self.by_field.values() if pause.worker == node and pause.until)
        return {pause.name: (pause.until or 0.0) - self.at for pause in mine}

    def __call__(self, scope: Scope, name: str) -> bool:
        """Whether a queue, or a task, is paused."""
        if not self.by_field:
            return False
        own = self._code_version if scope is Scope.TASK else ""
        is_of_version = bool(own) and field_of(Scope.VERSION, name, own) in self.by_field
        return is_of_version or field_of(scope, name) in self.by_field

    def stops(self, queue: str, task: str) -> bool:
        """Whether a message of ``task`` that came from ``queue`` may not begin."""
        return bool(self.by_field) and (self(Scope.QUEUE, queue) or self(Scope.TASK, task))


class HoldPauses:
    """Pauses by a person, and suspensions by a worker itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def _call(self, script: str, /, **words: Any) -> list[Any]:
        return self._ledger.scripts.call(f"{__package__}:{script}", **words)

    def pause(self, scope: Scope, name: str, *, actor: str, note: str, journalled: str) -> int:
        """Keep the messages of a queue, or of a task, in place; return the version.

        What is paused already is paused by the new actor from now on.

        Args:
            journalled: the journal's note.
        """
        return int(
            self._call("pause", scope=scope, name=name, actor=actor, note=note, journalled=journalled)[1]
        )

    def resume(self, scope: Scope, name: str, *, actor: str, journalled: str, code_version: str = "") -> int:
        """Let them go on; return the version.

        Args:
            code_version: for which alone it was paused.

        Raises:
            MessageNotFound: it is not paused.
        """
        words = {"scope": scope, "name": name, "actor": actor, "journalled": journalled}
        code, *rest = self._call(
            "resume", **words, field=field_of(scope, name, code_version), code_version=code_version
        )
        if code is Code.DONE:
            raise MessageNotFound(f"{scope} {name} is not paused")
        return int(rest[0])

    def suspend(self, node: str, queue: str, *, lasts_ms: int, most: int, worker: str, reason: str) -> bool:
        """Let a worker stop consuming a queue for a while (WAS-6); False where too many others have.

        Args:
            most: how many may at a time.
            worker: its incarnation, for the journal.
        """
        words = {"field": field_of(Scope.ENDPOINT, queue, node), "queue": queue, "worker": worker}
        return self._call("suspend", **words, reason=reason, lasts_ms=lasts_ms, most=most)[0] is Code.OK

    def end_suspension(self, node: str, queue: str, *, worker: str, actor: str = "", note: str = "") -> bool:
        """Let a worker consume a queue again; False if it was not suspended.

        Args:
            worker: its incarnation, as far as the caller knows it, for the journal.
            actor: empty: its time is over.
        """
        words = {"field": field_of(Scope.ENDPOINT, queue, node), "queue": queue, "worker": worker}
        return self._call("end_suspension", **words, actor=actor, note=note)[0] is Code.OK
