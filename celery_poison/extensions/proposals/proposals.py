"""Proposals in the ledger: one waits for a person, and is applied as it was read, or dismissed (NEW-7)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celery_poison.errors import ProposalRefused
from celery_poison.extensions.proposals.proposal import Proposal
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Code

#: For so long the pipeline does not propose again what a person said no to.
REFUSED_MS = 30 * 86_400_000

_NOT_APPLIED = {
    "unknown": "there is no proposal {version}; {waits}",
    "applied": "proposal {version} was applied already, by {by}",
    "dismissed": "proposal {version} was dismissed by {by}",
    "over": "proposal {version} has expired: its history is too old by now; {waits}",
    "replaced": "proposal {version} is not the newest any more; {waits}. Nothing was done",
}


def _check(version: int, code: Code, rest: list[bytes]) -> None:
    if code is Code.CONFLICT:
        why, more = (word.decode("utf-8", "replace") for word in rest)
        waits = f"{more} waits" if more else "none waits"
        raise ProposalRefused(_NOT_APPLIED[why].format(version=version, by=more, waits=waits))


class Proposals:
    """The pipeline's proposals, for a person. Raises ``LedgerUnavailable`` when Redis is away."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def waiting(self) -> Proposal | None:
        """Return the proposal that waits for a person."""
        key = self._ledger.keys.of("published")
        with clear_errors("reading the pipeline's proposal"):
            open_: Any = self._ledger.client.hget(key, "open")
            raw: Any = (
                self._ledger.client.hget(key, f"sheet:{open_.decode('utf-8', 'replace')}") if open_ else None
            )
            seconds, micros = self._ledger.client.time() if raw else (0, 0)
        return Proposal.read(raw, seconds + micros / 1_000_000)

    def refused_items(self) -> set[str]:
        """Return the items that a person said no to, and that are not to be proposed again yet."""
        with clear_errors("reading what the pipeline may not propose"):
            pipe = self._ledger.client.pipeline(transaction=False)
            pipe.hget(self._ledger.keys.of("published"), "refused")
            pipe.time()
            raw, (seconds, _) = pipe.execute()
        try:
            until = json.loads(raw or b"{}")
            ends_of: Mapping[str, float] = until if isinstance(until, dict) else {}
            return {item for item, ends in ends_of.items() if ends > seconds * 1000}
        except (ValueError, TypeError, RecursionError):
            return set()

    def publish(
        self, sheet: str, effect: str, *, lasts_ms: int, actor: str, journalled: str
    ) -> tuple[Code, int]:
        """Let a sheet of the pipeline wait for a person, in place of the one that waits.

        Args:
            sheet: JSON object, as docs/keys.md says.
            effect: the same for sheets that would do the same; empty where there is nothing to propose.
            lasts_ms: how long the proposal holds, and each of its rules once it is applied.
            journalled: the journal's note.

        Returns:
            OK and the version; KEPT and the version that waits already and would do the same; DONE and 0
            when nothing is proposed.
        """
        words: dict[str, Any] = {
            "sheet": sheet,
            "effect": effect,
            "lasts_ms": lasts_ms,
            "journalled": journalled,
        }
        code, version = self._ledger.scripts.call(f"{__package__}:publish", **words, actor=actor)
        return code, int(version or 0)

    def apply(
        self, version: int, *, actor: str, note: str = "", rules_only: bool = False, replaced: bool = False
    ) -> tuple[int, int]:
        """Put a proposal in force, whole; return how many rules and how many options of the policy.

        Args:
            rules_only: leave the policy alone.
            replaced: even if there is a newer one.

        Raises:
            ProposalRefused: it is over, or a person decided about it, or there is a newer one.
        """
        words: dict[str, Any] = {"version": version, "rules_only": rules_only, "replaced": replaced}
        code, *rest = self._ledger.scripts.call(
            f"{__package__}:apply_proposal", **words, actor=actor, note=note
        )
        _check(version, code, rest)
        rules, options = rest
        return int(rules), int(options)

    def dismiss(self, version: int, *, actor: str, note: str = "") -> None:
        """Drop the proposal that waits; nothing of it is proposed again for :data:`REFUSED_MS`.

        Raises:
            ProposalRefused: as :meth:`apply`.
        """
        words: dict[str, Any] = {"version": version, "actor": actor, "note": note}
        code, *rest = self._ledger.scripts.call(
            f"{__package__}:dismiss_proposal", **words, refuse_ms=REFUSED_MS
        )
        _check(version, code, rest)

    def retract(self, actor: str, note: str = "") -> tuple[int, bool]:
        """Take back what the pipeline put in force and no person changed since.

        Returns:
            How many rules, and whether the policy is as it was before.
        """
        _, rules, policies = self._ledger.scripts.call(
            f"{__package__}:retract", actor=actor, note=note, refuse_ms=REFUSED_MS
        )
        return int(rules), bool(policies)
