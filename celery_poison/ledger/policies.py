"""What is decided for the whole fleet: policies, the block list, and what the pipeline proposes for both.

Everything here raises ``LedgerUnavailable`` when Redis is away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celery_poison.blocks import Kind
from celery_poison.errors import MessageNotFound, PolicyConflict, ProposalRefused
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Caller, Code

VERSION = "version"
#: For so long the pipeline does not propose again what a person said no to.
REFUSED_MS = 30 * 86_400_000


class PolicyTransitions(Caller):
    """What a person, or the pipeline for a person, decides for the whole fleet."""

    def set_policy(self, task: str, options: str, expected: int, actor: str, note: str) -> int:
        """Override the policy of a task, or of every task (``*``), at run time; return the new version.

        Args:
            options: JSON object; the empty string takes the override away.
            expected: the version from which the caller started.

        Raises:
            PolicyConflict: that is not the version any more.
        """
        words = {"task": task, "options": options, "actor": actor, "note": note}
        code, version = self._call("policy_set", **words, expected=expected)
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
        words: dict[str, Any] = {"kind": kind, "name": name, "task": task, "lasts_ms": lasts_ms}
        return int(self._call("block", **words, actor=actor, note=note, said=said)[1])

    def unblock(self, kind: Kind, name: str, *, actor: str, said: str) -> int:
        """Take a rule off the block list, with the convictions that led to it; return the version.

        Raises:
            MessageNotFound: it is not blocked.
        """
        keys = {"convictions": self.keys.convictions(name)}
        reply = self._call("unblock", keys, kind=kind, name=name, actor=actor, said=said)
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
        words: dict[str, Any] = {"sheet": sheet, "effect": effect, "lasts_ms": lasts_ms, "said": said}
        code, version = self._call("publish", **words, actor=actor)
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
        words: dict[str, Any] = {"version": version, "rules_only": rules_only, "replaced": replaced}
        code, *rest = self._call("apply_proposal", **words, actor=actor, note=note)
        _check_proposal(version, code, rest)
        rules, options = rest
        return int(rules), int(options)

    def dismiss_proposal(self, version: int, *, actor: str, note: str = "") -> None:
        """Drop the proposal that waits; nothing of it is proposed again for :data:`REFUSED_MS`.

        Raises:
            ProposalRefused: as ``apply_proposal``.
        """
        words: dict[str, Any] = {"version": version, "actor": actor, "note": note}
        code, *rest = self._call("dismiss_proposal", **words, refuse_ms=REFUSED_MS)
        _check_proposal(version, code, rest)

    def retract(self, actor: str, note: str = "") -> tuple[int, bool]:
        """Take back what the pipeline put in force and nobody changed since.

        Returns:
            How many rules, and whether the policy is as it was before.
        """
        _, rules, policies = self._call("retract", actor=actor, note=note, refuse_ms=REFUSED_MS)
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


# --- reading ------------------------------------------------------------------------------------------


def version(ledger: Caller, key: str) -> int:
    """Return the version of what a hash keeps, 0 if nobody ever changed any; one cheap look.

    Args:
        key: ``keys.policy``, ``keys.blocks`` or ``keys.paused``.
    """
    with clear_errors("reading a version"):
        return number_of(ledger.client.hget(key, VERSION))


def read(ledger: Caller, key: str) -> tuple[int, dict[str, bytes], float]:
    """Return its version, all that it keeps (field -> JSON, unchecked) and Redis' clock in seconds."""
    with clear_errors("reading policies, blocks or pauses"):
        pipe = ledger.client.pipeline()
        pipe.hgetall(key)
        pipe.time()
        raw, (seconds, micros) = pipe.execute()
    found: dict[str, Any] = {name.decode("utf-8", "replace"): value for name, value in raw.items()}
    return number_of(found.pop(VERSION, None)), found, seconds + micros / 1_000_000


def block_field(kind: Kind, name: str) -> str:
    """Return where in the hash a rule stands."""
    return f"{kind}:{name}"


def waiting_proposal(ledger: Caller) -> tuple[bytes | None, float]:
    """Return the sheet that waits for a person (JSON, unchecked), and Redis' clock in seconds."""
    key = ledger.keys.published
    with clear_errors("reading the pipeline's proposal"):
        open_: Any = ledger.client.hget(key, "open")
        raw: Any = ledger.client.hget(key, f"sheet:{open_.decode('utf-8', 'replace')}") if open_ else None
        seconds, micros = ledger.client.time() if raw else (0, 0)
    return raw, seconds + micros / 1_000_000


def refused_items(ledger: Caller) -> set[str]:
    """Return the items of earlier proposals that a person said no to, and that are not to be proposed yet."""
    with clear_errors("reading what the pipeline may not propose"):
        pipe = ledger.client.pipeline()
        pipe.hget(ledger.keys.published, "refused")
        pipe.time()
        raw, (seconds, _) = pipe.execute()
    try:
        until = json.loads(raw or b"{}")
        ends_of: Mapping[str, float] = until if isinstance(until, dict) else {}
        return {item for item, ends in ends_of.items() if ends > seconds * 1000}
    except (ValueError, TypeError, RecursionError):
        return set()


def number_of(raw: Any) -> int:
    """Return a version as Redis keeps it; 0 where there is none."""
    return int(raw) if raw and raw.isdigit() else 0
