"""Begins and ends pauses in the ledger. Everything here raises ``LedgerUnavailable`` when Redis is away."""

from __future__ import annotations

from typing import Any

from celery_poison.errors import MessageNotFound
from celery_poison.ledger import Ledger
from celery_poison.ledger.scripts import Code
from celery_poison.rules.pauses import Scope, field_of


class HoldPauses:
    """What a person pauses, and what a worker suspends by itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def _call(self, script: str, /, **words: Any) -> list[Any]:
        return self._ledger.scripts.call(f"{__package__}:{script}", **words)

    def pause(self, scope: Scope, name: str, *, actor: str, note: str, said: str) -> int:
        """Keep the messages of a queue, or of a task, in place; return the version.

        What is paused already is paused by the new actor from now on.

        Args:
            said: the journal's note.
        """
        return int(self._call("pause", scope=scope, name=name, actor=actor, note=note, said=said)[1])

    def resume(self, scope: Scope, name: str, *, actor: str, said: str, code_version: str = "") -> int:
        """Let them go on; return the version.

        Args:
            code_version: for which alone it was paused.

        Raises:
            MessageNotFound: it is not paused.
        """
        words = {"scope": scope, "name": name, "actor": actor, "said": said}
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
