"""What is decided for the whole fleet: policies and blocks.

Everything here raises ``LedgerUnavailable`` when Redis is away.
"""

from __future__ import annotations

from typing import Any

from celery_poison.errors import MessageNotFound, PolicyConflict
from celery_poison.ledger.connection import Namespace, clear_errors
from celery_poison.ledger.scripts import Code, Part
from celery_poison.rules.blocks import Kind

VERSION = "version"


class PolicyTransitions(Part):
    """What a person decides for the whole fleet."""

    def set(self, task: str, options: str, expected: int, actor: str, note: str) -> int:
        """Override the policy of a task, or of every task (``*``), at run time; return the new version.

        Args:
            options: JSON object; the empty string takes the override away.
            expected: the version from which the caller started.

        Raises:
            PolicyConflict: that is not the version any more.
        """
        words = {"task": task, "options": options, "actor": actor, "note": note}
        code, version = self._scripts.call("policy_set", **words, expected=expected)
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
            lasts_ms: 0 for until a person unblocks it.
            said: the journal's note.
        """
        words: dict[str, Any] = {"kind": kind, "name": name, "task": task, "lasts_ms": lasts_ms}
        return int(self._scripts.call("block", **words, actor=actor, note=note, said=said)[1])

    def unblock(self, kind: Kind, name: str, *, actor: str, said: str) -> int:
        """Take a rule off the block list, with the convictions that led to it; return the version.

        Raises:
            MessageNotFound: it is not blocked.
        """
        keys = {"convictions": self._scripts.keys.convictions(name)}
        reply = self._scripts.call("unblock", keys, kind=kind, name=name, actor=actor, said=said)
        if reply[0] is Code.DONE:
            raise MessageNotFound(f"{kind} {name} is not blocked")
        return int(reply[1])


# --- reading ------------------------------------------------------------------------------------------


def version(ledger: Namespace, key: str) -> int:
    """Return the version of what a hash keeps, 0 if none was ever changed; one cheap look.

    Args:
        key: ``keys.policy``, ``keys.blocks`` or ``keys.paused``.
    """
    with clear_errors("reading a version"):
        return number_of(ledger.client.hget(key, VERSION))


def read(ledger: Namespace, key: str) -> tuple[int, dict[str, bytes], float]:
    """Return a hash's version, its fields (name -> JSON, unchecked) and Redis' clock in seconds."""
    with clear_errors("reading policies, blocks or pauses"):
        pipe = ledger.client.pipeline()
        pipe.hgetall(key)
        pipe.time()
        raw, (seconds, micros) = pipe.execute()
    fields: dict[str, Any] = {name.decode("utf-8", "replace"): value for name, value in raw.items()}
    return number_of(fields.pop(VERSION, None)), fields, seconds + micros / 1_000_000


def block_field(kind: Kind, name: str) -> str:
    """Return where in the hash a rule stands."""
    return f"{kind}:{name}"


def number_of(raw: Any) -> int:
    """Return a version as Redis keeps it; 0 where there is none."""
    return int(raw) if raw and raw.isdigit() else 0
