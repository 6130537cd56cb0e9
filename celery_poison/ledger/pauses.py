"""What is paused for the whole fleet: a queue, or a task. Raises ``LedgerUnavailable`` when Redis is away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery_poison.errors import MessageNotFound
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.policies import VERSION, number_of
from celery_poison.ledger.scripts import Caller, Code
from celery_poison.pauses import Pause, Scope, field_of, read_pauses


class PauseTransitions(Caller):
    """What a person keeps from running."""

    def pause(self, scope: Scope, name: str, *, actor: str, note: str, said: str) -> int:
        """Keep the messages of a queue, or of a task, in place; return the version.

        What is paused already is paused by the new actor from now on.

        Args:
            said: the journal's note.
        """
        arguments = {"scope": scope.value, "name": name, "actor": actor, "note": note, "said": said}
        return int(self._call("pause", {}, **arguments)[1])

    def resume(self, scope: Scope, name: str, *, actor: str, said: str) -> int:
        """Let them go on; return the version.

        Raises:
            MessageNotFound: it is not paused.
        """
        code, *rest = self._call("resume", {}, scope=scope.value, name=name, actor=actor, said=said)
        if code is Code.DONE:
            raise MessageNotFound(f"{scope} {name} is not paused")
        return int(rest[0])

    def suspend(self, node: str, queue: str, *, lasts_ms: int, most: int, worker: str, reason: str) -> bool:
        """Let a worker stop consuming a queue for a while (WAS-6); False where too many others have.

        Args:
            most: how many may at a time.
            worker: its incarnation, for the journal.
        """
        field = field_of(Scope.ENDPOINT, queue, node)
        arguments = {"field": field, "queue": queue, "worker": worker, "reason": reason}
        return self._call("suspend", {}, **arguments, lasts_ms=lasts_ms, most=most)[0] is Code.OK

    def end_suspension(self, node: str, queue: str, *, worker: str, actor: str = "", note: str = "") -> bool:
        """Let a worker consume a queue again; False if it was not suspended.

        Args:
            worker: its incarnation, as far as the caller knows it, for the journal.
            actor: empty: its time is over.
        """
        field = field_of(Scope.ENDPOINT, queue, node)
        arguments = {"field": field, "queue": queue, "worker": worker, "actor": actor, "note": note}
        return self._call("end_suspension", {}, **arguments)[0] is Code.OK


# --- reading ------------------------------------------------------------------------------------------


def read(ledger: Caller) -> tuple[int, dict[str, bytes], float]:
    """Return the version, all pauses (field -> JSON, unchecked) and Redis' clock in seconds."""
    with clear_errors("reading what is paused"):
        pipe = ledger.client.pipeline()
        pipe.hgetall(ledger.keys.paused)
        pipe.time()
        raw, (seconds, micros) = pipe.execute()
    found: dict[str, Any] = {name.decode("utf-8", "replace"): value for name, value in raw.items()}
    return number_of(found.pop(VERSION, None)), found, seconds + micros / 1_000_000


def holding(ledger: Caller) -> list[Pause]:
    """Return what is paused at this moment, the oldest pause first."""
    _, raw, now = read(ledger)
    return [*read_pauses(raw, now)[0].values()]


def version(ledger: Caller) -> int:
    """Return the version of the pauses, 0 if nobody ever paused anything; one cheap look."""
    with clear_errors("reading the version of the pauses"):
        return number_of(ledger.client.hget(ledger.keys.paused, VERSION))


class Paused:
    """A copy of what is paused, replaced as a whole: one thread refreshes it, any thread asks it.

    Args:
        complain: is told of what is not usable.
    """

    def __init__(self, ledger: Caller, complain: Callable[[Exception], object] = lambda error: None) -> None:
        self._ledger = ledger
        self._complain = complain
        self._version = 0
        self._by_field: Mapping[str, Pause] = {}
        #: When it was read, in seconds of Redis' clock.
        self._at = 0.0

    def refresh(self) -> tuple[list[Pause], list[Pause]]:
        """Take over what has changed; return what is paused now, and what is not any more.

        Raises:
            LedgerUnavailable: Redis is away; what was paused stays so.
        """
        if version(self._ledger) == self._version:
            return [], []
        newest, raw, now = read(self._ledger)
        pauses, complaints = read_pauses(raw, now)
        for complaint in complaints:
            self._complain(complaint)
        before = self._by_field
        self._version, self._by_field, self._at = newest, pauses, now
        paused = [pause for field, pause in pauses.items() if before.get(field) != pause]
        return paused, [pause for field, pause in before.items() if field not in pauses]

    def suspended(self, node: str) -> dict[str, float]:
        """Return from which queues a node has suspended itself: queue -> seconds, as of the last change."""
        mine = (pause for pause in self._by_field.values() if pause.worker == node and pause.until)
        return {pause.name: (pause.until or 0.0) - self._at for pause in mine}

    def __call__(self, scope: Scope, name: str) -> bool:
        """Whether a queue, or a task, is paused."""
        return bool(self._by_field) and field_of(scope, name) in self._by_field

    def stops(self, queue: str, task: str) -> bool:
        """Whether a message of ``task`` that came from ``queue`` may not begin."""
        return self(Scope.QUEUE, queue) or self(Scope.TASK, task)
