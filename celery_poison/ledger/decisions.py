"""Transitions that people decide: about messages in quarantine, policies, and what is blocked."""

from __future__ import annotations

from typing import Any

from celery_poison.blocks import Kind
from celery_poison.errors import MessageNotFound, PolicyConflict, ProposalRefused
from celery_poison.ledger.scripts import Caller, Code
from celery_poison.states import Event

#: After this long an operator's unfinished decision counts as abandoned.
DECISION_PATIENCE_MS = 30_000
#: For so long the pipeline does not propose again what a person said no to.
REFUSED_MS = 30 * 86_400_000


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

    def publish(self, sheet: str, effect: str, *, lasts_ms: int, actor: str, said: str) -> tuple[Code, int]:
        """Let a sheet of the pipeline wait for a person, in place of the one that waits.

        Args:
            sheet: JSON object, as docs/keys.md says.
            effect: the same for sheets that would do the same; empty where there is nothing to propose.
            lasts_ms: how long the proposal holds, and each of its rules once it is applied.
            said: the journal's note.

        Returns:
            OK and the version; KEPT and the version that waits already and would do the same; DONE and 0
            when nothing is proposed.
        """
        told: dict[str, Any] = {"sheet": sheet, "effect": effect, "lasts_ms": lasts_ms, "said": said}
        code, version = self._call("publish", {}, **told, actor=actor)
        return code, int(version or 0)

    def apply_proposal(
        self, version: int, *, actor: str, note: str = "", rules_only: bool = False, replaced: bool = False
    ) -> tuple[int, int]:
        """Put a proposal in force, whole; return how many rules and how many options of the policy.

        Args:
            rules_only: leave the policy alone.
            replaced: even if there is a newer one.

        Raises:
            ProposalRefused: it is over, or somebody decided about it, or there is a newer one.
        """
        flags = {"rules_only": "1" if rules_only else "", "replaced": "1" if replaced else ""}
        told: dict[str, Any] = {"version": version, "actor": actor, "note": note, **flags}
        code, *rest = self._call("apply_proposal", {}, **told)
        _check_proposal(version, code, rest)
        rules, options = rest
        return int(rules), int(options)

    def dismiss_proposal(self, version: int, *, actor: str, note: str = "") -> None:
        """Drop the proposal that waits; nothing of it is proposed again for :data:`REFUSED_MS`.

        Raises:
            ProposalRefused: as ``apply_proposal``.
        """
        told: dict[str, Any] = {"version": version, "actor": actor, "note": note}
        code, *rest = self._call("dismiss_proposal", {}, **told, refuse_ms=REFUSED_MS)
        _check_proposal(version, code, rest)

    def retract(self, actor: str, note: str = "") -> tuple[int, bool]:
        """Take back what the pipeline put in force and nobody changed since.

        Returns:
            How many rules, and whether the policy is as it was before.
        """
        told: dict[str, Any] = {"actor": actor, "note": note, "refuse_ms": REFUSED_MS}
        _, rules, policies = self._call("retract", {}, **told)
        return int(rules), bool(policies)


_NOT_APPLIED = {
    "unknown": "there is no proposal {version}; {waits}",
    "applied": "proposal {version} was applied already, by {by}",
    "dismissed": "proposal {version} was dismissed by {by}",
    "over": "proposal {version} is over: what it rests on is too old by now; {waits}",
    "replaced": "proposal {version} is not the newest any more; {waits}. Nothing was done",
}


def _check_proposal(version: int, code: Code, rest: list[bytes]) -> None:
    if code is Code.CONFLICT:
        why, more = (word.decode("utf-8", "replace") for word in rest)
        waits = f"{more} waits" if more else "none waits"
        raise ProposalRefused(_NOT_APPLIED[why].format(version=version, by=more, waits=waits))
