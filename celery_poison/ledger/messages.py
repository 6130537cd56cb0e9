"""Transitions of messages that workers receive, run, finish and die with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_poison.basics.numbers import whole
from celery_poison.basics.text import decoded
from celery_poison.ledger.messages_read import ENDS, STATES, parking_of, start_of
from celery_poison.ledger.scripts import Code, LedgerPart, pairs
from celery_poison.model import Ended, Guilt, History, Parked, Phase, Start, history_of
from celery_poison.states import State

#: Further facts about a start, for the journal: ``memory_kb fingerprint shape release evidence``, as text.
Known = Mapping[str, str]
NOTHING_KNOWN: Known = {}
_NO_KEYS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class MessageState:
    """A message's newest start, lineage, record in quarantine and parking, as ``look`` saw them."""

    raw: bytes
    start: Start | None
    ended: Ended
    owner: str
    history: History
    kept: State | None
    release: int
    parked: Parked | None
    run_id: str
    gate_closed: bool = False

    @property
    def is_in_the_way(self) -> bool:
        """Whether the start on record forbids another one; a claim of a worker that is gone does not."""
        start = self.start
        return start is not None and not (start.phase == Phase.CLAIMED and self.owner != "alive")


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """Outcome of recording an end: ``finished`` when it had ended well before it died."""

    history: History
    finished: bool = False
    gate_closed: bool = False


class MessageTransitions(LedgerPart):
    """What workers do with messages, and monitors for workers that died.

    ``fence`` is the number of the monitor that reports an end, None where the start's own worker does;
    ``known`` is what else is known about the start. A call that is too late raises: ``StaleDelivery``, the
    message has a newer start or this one is not on record; ``Fenced``, another monitor took over.
    """

    def look(self, mid: str, id: str, activation_ms: int) -> MessageState:
        """Return everything known about a message; changes nothing."""
        return self.look_many([(mid, id)], activation_ms)[0]

    def look_many(self, messages: Iterable[tuple[str, str]], activation_ms: int) -> list[MessageState]:
        """Return everything known about messages, given as (mid, task id), in one round trip."""
        calls = ((self._of(mid, id), {"mid": mid}) for mid, id in messages)
        return [
            _state_of(reply) for reply in self._scripts.call_each("look", calls, activation_ms=activation_ms)
        ]

    def claim(self, mid: str, seen: bytes, start: Start | None) -> bool:
        """Replace the start that was seen by ``start``; False when another claim was faster."""
        return self.claim_many([(mid, seen, start)])[0]

    def claim_many(self, claims: Iterable[tuple[str, bytes, Start | None]]) -> list[bool]:
        """Make claims, given as (mid, seen, start), each for itself, in one round trip."""
        calls = ((_NO_KEYS, {"mid": mid, "seen": seen, "start": start}) for mid, seen, start in claims)
        return [reply[0] is Code.OK for reply in self._scripts.call_each("claim", calls)]

    def begin(self, mid: str, start: Start) -> None:
        """Put the start of a task that must not run twice on record, before its body begins (NEW-16).

        Raises:
            StaleDelivery: another start of its message has begun, and runs or was cut off; or it is kept.
            LedgerUnavailable: that is unknown.
        """
        self._scripts.call("begin", mid=mid, start=start)

    def crash(
        self,
        mid: str,
        start: Start,
        *,
        cause: str,
        shared: bool,
        failure: bool = False,
        incident: str = "",
        fence: int | None = None,
        died_at: float | None = None,
        known: Known = NOTHING_KNOWN,
    ) -> RecordedEnd:
        """Count a death of ``start`` and flag its message as a candidate (SAP-2). Idempotent per token.

        Args:
            died_at: of the worker: its last sign of life, in seconds; the run ended then, or later.
        """
        end = {"mid": mid, "start": start, "cause": cause, "fence": fence, "known": packed(known)}
        words = {"blame": "shared" if shared else "exact", "observe": not start.diverts, "failure": failure}
        return _recorded(self._scripts.call("crash", **end, **words, incident=incident, died_at=_ms(died_at)))

    def interrupt(
        self,
        mid: str,
        start: Start,
        *,
        cause: str,
        failure: bool = False,
        incident: str = "",
        fence: int | None = None,
        doubt: int = 0,
        spoilt: bool = False,
        died_at: float | None = None,
        known: Known = NOTHING_KNOWN,
    ) -> bool:
        """Take back a start that ended through no fault of its message; adds no strike.

        Returns whether it had ended well before.

        Args:
            doubt: what the end of its worker weighs, if it was on trial (``doubts.Blow.share``),
            spoilt: and nothing outside has a share in that.
            failure: count it as a failure, so that it cannot go on for ever.
        """
        end = {"mid": mid, "start": start, "cause": cause, "fence": fence, "known": packed(known)}
        words = {
            "failure": failure,
            "incident": incident,
            "doubt": doubt,
            "spoilt": spoilt,
            "died_at": _ms(died_at),
        }
        return self._scripts.call("interrupt", **end, **words)[0] is Code.DONE

    def rollback(
        self,
        mid: str,
        start: Start,
        *,
        cause: str,
        fence: int | None = None,
        known: Known = NOTHING_KNOWN,
    ) -> RecordedEnd:
        """Count one failure of a message that its task put back (WAS-2). Idempotent per token."""
        end = {"mid": mid, "start": start, "cause": cause, "fence": fence, "known": packed(known)}
        return _recorded(self._scripts.call("rollback", **end))

    def finish(self, mid: str, start: Start, *, fence: int, release: str = "") -> None:
        """Note the end of a start that a dead worker had finished and not written down."""
        keys = {"tied": self._scripts.keys.tied(start.token)}
        self._scripts.call("finish", keys, mid=mid, start=start, fence=fence, release=release)

    def forget_ends(self, tokens: Iterable[str], fence: int) -> None:
        """Forget ends whose starts are not on record."""
        if rest := list(tokens):
            self._scripts.call("forget_ends", rest=rest, fence=fence)

    def clean_up(self, starts: Iterable[tuple[str, str]]) -> list[int]:
        """Forget acknowledged starts, given as (mid, token); return the numbers of those not on record."""
        rest = [*starts]
        return self._scripts.call("clean_up", rest=rest, tied=self._scripts.keys.tied(""))[1:] if rest else []

    def resync(self, starts: Iterable[tuple[str, Start, Ended]]) -> int:
        """Put starts on record again, where Redis may have forgotten them, and how they ended.

        Starts of workers that were declared dead are left alone, and so is every other start of the message.
        Returns the number of those that were not wholly on record.
        """
        rest = [*starts]
        return int(self._scripts.call("resync", rest=rest)[1]) if rest else 0

    def revoke_strike(
        self, mid: str, token: str, id: str, guilt: Guilt = Guilt.CLEARED, lost: Start | None = None
    ) -> None:
        """Take back the strike of a start that was taken for dead and ended alive.

        Args:
            guilt: what its end proves: earlier strikes go only if it cleared them.
            lost: the start, if it is known that the message has a new owner, or had one.

        Raises:
            StaleDelivery: the message has a new owner, whose records stay as they are (EMS-8).
        """
        self._scripts.call("survived", mid=mid, token=token, id=id, guilt=guilt.value, lost=lost)

    def reclaim(self, mid: str, start: Start) -> None:
        """Put a start that still runs on record again, after its worker was taken for dead.

        Raises:
            StaleDelivery: the message has a new owner, or has ended elsewhere.
        """
        self._scripts.call("reclaim", mid=mid, start=start)

    def acquit(self, mid: str, start: Start, guilt: Guilt, *, copy: bool = False, why: str = "") -> bool:
        """Record what the end of a message proves; where it clears it, its record goes.

        Returns whether a suspicion, or the probation of a released message, was cleared.

        Args:
            copy: the broker may not have heard of it, and a copy may come: its start stays.
            why: it never ran, and is acknowledged.
        """
        return self.acquit_many([(mid, start, guilt)], copy=copy, why=why)[0]

    def acquit_many(
        self, messages: Iterable[tuple[str, Start, Guilt]], *, copy: bool, why: str = ""
    ) -> list[bool]:
        """Record what the ends of messages prove, given as (mid, start, guilt), in one round trip."""
        calls = (
            (self._of(mid, start.id), {"mid": mid, "start": start, "guilt": guilt.value})
            for mid, start, guilt in messages
        )
        return [bool(reply[1]) for reply in self._scripts.call_each("acquit", calls, copy=copy, why=why)]

    def duplicate(self, mid: str, start: Start, *, reason: str) -> None:
        """Journal a copy that is acknowledged without running.

        The flag of a message that has ended goes with it, if its worker did not live to take it away.
        """
        self._scripts.call("duplicate", mid=mid, start=start, reason=reason)


def _state_of(reply: list[Any]) -> MessageState:
    _, raw, ended, owner, lineage, kept, release, parked, run_id, gate = reply
    fields = pairs(lineage)
    return MessageState(
        raw=raw,
        start=start_of(raw),
        ended=ENDS.get(ended, Ended.NOT),
        owner=decoded(owner),
        history=history_of(fields),
        kept=STATES.get(decoded(kept)) if kept else None,
        release=max(whole(release), whole(fields.get("release"))),
        parked=parking_of(parked),
        run_id=decoded(run_id),
        gate_closed=bool(gate),
    )


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else str(round(seconds * 1000))


def packed(known: Known) -> str:
    """Return the facts as scripts take them."""
    # Redis reads no text that is not Unicode; a file name may be.
    whole = {name: value.encode("utf-8", "replace").decode() for name, value in known.items() if value}
    return json.dumps(whole)


def _recorded(reply: list[Any]) -> RecordedEnd:
    if reply[0] is Code.DONE:
        return RecordedEnd(History(), finished=True)
    return RecordedEnd(history_of(pairs(reply[1])), gate_closed=len(reply) > 2 and bool(reply[2]))
