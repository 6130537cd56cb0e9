"""Transitions that people decide: about messages in quarantine, policies, and what is blocked."""

from __future__ import annotations

from typing import Any

from celery_poison.blocks import Kind
from celery_poison.errors import MessageNotFound, PolicyConflict
from celery_poison.ledger.calling import Caller
from celery_poison.ledger.scripts import Code
from celery_poison.states import Event

#: After this long an operator's unfinished decision counts as abandoned.
DECISION_PATIENCE_MS = 30_000


class Decisions(Caller):
    """What a person, or the pipeline for a person, decides."""

    def decide(self, mid: str, verb: str, actor: str, note: str = "") -> int:
        """Reserve a message in quarantine for one operator; return the number of the decision.

        Raises:
            MessageNotFound, IllegalTransition: it is not in quarantine.
            DecisionPending: another operator is at it.
        """
        told: dict[str, Any] = {"verb": verb, "actor": actor, "note": note}
        arguments = {**told, "patience_ms": DECISION_PATIENCE_MS}
        return int(self._call("decide", {"message": self.keys.message(mid)}, **arguments)[1])

    def undecide(self, mid: str, number: int) -> None:
        """Give a reserved message back after a failed attempt, unless somebody took it over."""
        self._call("undecide", {"message": self.keys.message(mid)}, number=number)

    def released(self, mid: str, id: str, release: int, actor: str = "", note: str = "") -> None:
        """Complete a release whose message was published (TBDL, on probation). Idempotent."""
        arguments: dict[str, Any] = {"mid": mid, "release": release, "actor": actor, "note": note}
        self._call("released", self._of(mid, id), **arguments)

    def give_up(self, mid: str, event: Event, actor: str, note: str, number: int = 0) -> None:
        """Complete a ``failed`` or ``discarded`` decision (FAIL).

        Raises:
            StaleDelivery: somebody else took the decision over.
        """
        told = {"mid": mid, "event": event.value, "actor": actor, "note": note}
        arguments: dict[str, Any] = {**told, "number": number}
        self._call("give_up", {"message": self.keys.message(mid)}, **arguments)

    def set_policy(self, task: str, options: str, expected: int, actor: str, note: str) -> int:
        """Override the policy of a task, or of every task (``*``), at run time; return the new version.

        Args:
            options: JSON object; the empty string takes the override away.
            expected: the version from which the caller started.

        Raises:
            PolicyConflict: that is not the version any more.
        """
        told: dict[str, Any] = {"task": task, "options": options, "actor": actor, "note": note}
        code, version = self._call("policy_set", {}, **told, expected=expected)
        if code is Code.CONFLICT:
            raise PolicyConflict(
                f"a policy was changed meanwhile: the version is {version}, not {expected}; nothing was done"
            )
        return int(version)

    def block(
        self, kind: Kind, name: str, *, task: str, lasts_ms: int, actor: str, note: str, said: str
    ) -> int:
        """Send messages of a task, or of a fingerprint, to quarantine on arrival; return the version.

        Args:
            task: whose messages can match; empty: those of any task.
            lasts_ms: 0 for until somebody unblocks it.
            said: the journal's note.
        """
        told: dict[str, Any] = {"kind": kind.value, "name": name, "task": task, "lasts_ms": lasts_ms}
        return int(self._call("block", {}, **told, actor=actor, note=note, said=said)[1])

    def unblock(self, kind: Kind, name: str, *, actor: str, said: str) -> int:
        """Take a rule off the block list, with the convictions that led to it; return the version.

        Raises:
            MessageNotFound: it is not blocked.
        """
        keys = {"convictions": self.keys.convictions(name)}
        reply = self._call("unblock", keys, kind=kind.value, name=name, actor=actor, said=said)
        if reply[0] is Code.DONE:
            raise MessageNotFound(f"{kind} {name} is not blocked")
        return int(reply[1])

    def publish(self, sheet: str, *, force: bool, lasts_ms: int, actor: str) -> tuple[int, int]:
        """Keep a sheet of the pipeline's block rules as a proposal, or put all of them in force.

        Args:
            sheet: JSON, as docs/keys.md says.
            lasts_ms: how long the proposal, or each rule, holds.

        Returns:
            The sheet's version, and how many rules were put in force.
        """
        told: dict[str, Any] = {"force": "1" if force else "", "sheet": sheet, "lasts_ms": lasts_ms}
        _, version, count = self._call("publish", {}, **told, actor=actor)
        return int(version), int(count)

    def retract(self, actor: str) -> int:
        """Take back the pipeline's rules that nobody changed since, and its proposal; return how many."""
        return int(self._call("retract", {}, actor=actor)[1])
