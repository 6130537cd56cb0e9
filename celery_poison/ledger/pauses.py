"""What is paused, read; ``LedgerUnavailable`` when Redis is away."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from celery_poison.ledger import Ledger
from celery_poison.ledger.policies import read, version
from celery_poison.rules.pauses import Pause, Scope, field_of, read_pauses


def holding(ledger: Ledger) -> list[Pause]:
    """Return what is paused at this moment, the oldest pause first."""
    _, raw, now = read(ledger, ledger.keys.paused)
    return [*read_pauses(raw, now)[0].values()]


def paused_versions(ledger: Ledger) -> list[Pause]:
    """Return what is paused for one version, the oldest pause first."""
    return [pause for pause in holding(ledger) if pause.scope is Scope.VERSION]


class Paused:
    """A copy of what is paused, replaced as a whole: one thread refreshes it, any thread asks it.

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
        self._ledger = ledger
        self._complain = complain
        self._code_version = code_version
        self._version = 0
        self._by_field: Mapping[str, Pause] = {}
        #: When it was read, in seconds of Redis' clock.
        self._at = 0.0

    def refresh(self) -> tuple[list[Pause], list[Pause]]:
        """Take over all changes; return the pauses that began, and those that ended.

        Raises:
            LedgerUnavailable: Redis is away; what was paused stays so.
        """
        if version(self._ledger, self._ledger.keys.paused) == self._version:
            return [], []
        newest, raw, now = read(self._ledger, self._ledger.keys.paused)
        pauses, complaints = read_pauses(raw, now)
        for complaint in complaints:
            self._complain(complaint)
        before = self._by_field
        self._version, self._by_field, self._at = newest, pauses, now
        paused = [pause for field, pause in pauses.items() if before.get(field) != pause]
        return paused, [pause for field, pause in before.items() if field not in pauses]

    def as_of_now(self) -> Paused:
        """Return a new copy; this one stays as it is, so that its owner still hears what has changed.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        newest = Paused(self._ledger, self._complain, self._code_version)
        newest.refresh()
        return newest

    def suspended(self, node: str) -> dict[str, float]:
        """Return from which queues a node has suspended itself: queue -> seconds, as of the last change."""
        mine = (pause for pause in self._by_field.values() if pause.worker == node and pause.until)
        return {pause.name: (pause.until or 0.0) - self._at for pause in mine}

    def __call__(self, scope: Scope, name: str) -> bool:
        """Whether a queue, or a task, is paused."""
        if not self._by_field:
            return False
        own = self._code_version if scope is Scope.TASK else ""
        is_of_version = bool(own) and field_of(Scope.VERSION, name, own) in self._by_field
        return is_of_version or field_of(scope, name) in self._by_field

    def stops(self, queue: str, task: str) -> bool:
        """Whether a message of ``task`` that came from ``queue`` may not begin."""
        return bool(self._by_field) and (self(Scope.QUEUE, queue) or self(Scope.TASK, task))
