"""The ledger's transitions: one typed method for each Lua script, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import redis

from celery_poison.blocks import Kind
from celery_poison.errors import MessageNotFound, PolicyConflict
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.scripts import Code, Runner
from celery_poison.records import Parked, Start, history_of
from celery_poison.states import Event, State
from celery_poison.verdict import Ended, History, Phase

#: After this long an operator's unfinished decision counts as abandoned.
DECISION_PATIENCE_MS = 30_000


#: How long convictions of a fingerprint count, and how long it stays blocked when there were enough.
REMEMBER_CONVICTIONS_MS = 30 * 86_400_000

#: Bounds of the histogram of recoveries: seconds from a worker's death until all of it was put back.
RECOVERY_BOUNDS = (0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)

#: For so long all connections of a worker must be gone before it counts as dead. A live process whose
#: connection was cut is back within milliseconds.
GONE_PATIENCE_MS = 1000


#: What the journal tells beside the start: ``memory_kb fingerprint shape release evidence``, as text.
Known = Mapping[str, str]
NOTHING_KNOWN: Known = {}


class Silence(StrEnum):
    """In what way a worker is not well."""

    GONE = "gone"
    """The connections of all its processes are gone, and stayed gone."""
    SILENT = "silent"
    """No heartbeat for the activation interval, and nobody can count its connections."""
    FROZEN = "frozen"
    """No heartbeat for the activation interval, though its connections stand."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What ``watch`` saw: how many workers' connections can be counted, by which Redis; who is not well."""

    counted: int
    run_id: str
    unwell: dict[str, Silence]


@dataclass(frozen=True, slots=True)
class Sight:
    """What ``look`` saw: a message's newest start, lineage, record in quarantine and parking."""

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
class Recorded:
    """Outcome of recording an end: ``finished`` when it had ended well before it died."""

    history: History
    finished: bool = False
    gate_closed: bool = False


@dataclass(frozen=True, slots=True)
class GateLimits:
    """What closes the fleet gate: the settings ``fleet_gate_*``, times in ms."""

    share: float
    workers: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class Burial:
    """A worker was declared dead.

    Attributes:
        closed_gate: this death closed the fleet gate.
        deaths: nodes that died within the gate's window; 0 where nobody counts.
        fleet: of how many.
    """

    cause: str
    closed_gate: bool = False
    deaths: int = 0
    fleet: int = 0


class Ledger:
    """Transitions of messages and workers, each atomic, each journalled in the same step.

    Args:
        client: from :func:`celery_poison.ledger.connection.open_redis`.
        keys: the namespace's keys.
        journal_maxlen: entries the journal keeps, approximately.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses the write.
    """

    def __init__(self, client: redis.Redis, keys: Keys, journal_maxlen: int = 1_000_000) -> None:
        self.client = client
        self.keys = keys
        self._maxlen = journal_maxlen
        self._run = Runner(client)
        self._fixed = {name: value for name, value in vars(keys).items() if name != "prefix"}

    def _call(self, script: str, keys: Mapping[str, str], /, *, rest: Any = (), **arguments: Any) -> Any:
        arguments["maxlen"] = self._maxlen
        return self._run(script, {**self._fixed, **keys}, arguments, rest)

    def _of(self, mid: str, id: str) -> dict[str, str]:
        return {"lineage": self.keys.lineage(id), "message": self.keys.message(mid)}

    # --- a worker and its messages -------------------------------------------------------------

    def look(self, mid: str, id: str, activation_ms: int) -> Sight:
        """Return everything known about a message; changes nothing."""
        arguments: dict[str, Any] = {"mid": mid, "activation_ms": activation_ms}
        reply = self._call("look", self._of(mid, id), children=self.keys.children, **arguments)
        _, raw, ended, owner, lineage, kept, release, parked, run_id, gate = reply
        return Sight(
            raw=raw,
            start=Start.decode(raw) if raw else None,
            ended=Ended(ended.decode()),
            owner=owner.decode(),
            history=history_of(pairs(lineage)),
            kept=State(kept.decode()) if kept else None,
            release=max(int(release), int(pairs(lineage).get("release") or 0)),
            parked=Parked.decode(parked) if parked else None,
            run_id=run_id.decode(),
            gate_closed=bool(gate),
        )

    def claim(self, mid: str, seen: bytes, start: Start | None) -> bool:
        """Replace the start that was seen by ``start``; False when somebody else was faster."""
        new = start.encode() if start else b""
        return bool(self._call("claim", {}, mid=mid, seen=seen, start=new)[0] is Code.OK)

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
        known: Known = NOTHING_KNOWN,
        group: int = 0,
    ) -> Recorded:
        """Count a death of ``start`` and flag its message as a candidate (SAP-2). Idempotent per token.

        Args:
            known: what else is known about the start.
            fence: of the monitor that tells it; None when the start's own worker does.
            group: it died in a cell with others: with how many at most it may be tried next; 0: it did not.

        Raises:
            StaleDelivery: the message has a newer start.
            Fenced: another monitor took over.
        """
        reply = self._call(
            "crash",
            self._of(mid, start.id),
            mid=mid,
            start=start.encode(),
            cause=cause,
            blame="shared" if shared else "exact",
            failure=int(failure),
            incident=incident,
            observe=int(not start.diverts),
            fence=_fence(fence),
            known=_packed(known),
            group=group or "",
        )
        return _recorded(reply)

    def interrupt(
        self,
        mid: str,
        start: Start,
        *,
        cause: str,
        failure: bool = False,
        incident: str = "",
        fence: int | None = None,
        spoilt: bool = False,
        known: Known = NOTHING_KNOWN,
    ) -> bool:
        """Take back a start that ended through nobody's fault; adds no strike.

        Returns whether it had ended well before.

        Args:
            spoilt: it was on trial, and the worker beside it ended: the next trial is at an idle worker.
            failure: count it as a failure, so that it cannot go on for ever.
            fence: of the monitor that tells it; None when the start's own worker does.
            known: what else is known about the start.

        Raises:
            StaleDelivery: the message has no such start any more.
            Fenced: another monitor took over.
        """
        arguments: dict[str, Any] = {
            "mid": mid,
            "start": start.encode(),
            "cause": cause,
            "failure": int(failure),
            "incident": incident,
            "fence": _fence(fence),
            "spoilt": int(spoilt),
            "known": _packed(known),
        }
        reply = self._call("interrupt", self._of(mid, start.id), **arguments)
        return bool(reply[0] is Code.DONE)

    def rollback(
        self,
        mid: str,
        start: Start,
        *,
        cause: str,
        fence: int | None = None,
        known: Known = NOTHING_KNOWN,
    ) -> Recorded:
        """Count one failure of a message that its task put back (WAS-2). Idempotent per token."""
        arguments: dict[str, Any] = {
            "mid": mid,
            "start": start.encode(),
            "cause": cause,
            "fence": _fence(fence),
            "known": _packed(known),
        }
        return _recorded(self._call("rollback", self._of(mid, start.id), **arguments))

    def settle(self, starts: Iterable[tuple[str, str]]) -> list[int]:
        """Forget acknowledged starts, given as (mid, token); return the numbers of those not on record."""
        flat = [word for pair in starts for word in pair]
        return [int(number) for number in self._call("settle", {}, rest=flat)[1:]] if flat else []

    def remind(self, starts: Iterable[tuple[str, Start, Ended]]) -> int:
        """Put starts on record again, where Redis may have forgotten them, and how they ended.

        Starts of workers that were declared dead are left alone, and so is every other start of the message.
        Returns the number of those that were not wholly on record.
        """
        flat = [word for mid, start, ended in starts for word in (mid, start.encode(), ended.value)]
        return int(self._call("remind", {}, rest=flat)[1]) if flat else 0

    def survived(self, mid: str, token: str, id: str, lost: Start | None = None) -> None:
        """Take back the strike of a start that was taken for dead and ended alive.

        Args:
            lost: the start, if it is known that the message has a new owner, or had one.

        Raises:
            StaleDelivery: the message has a new owner, of whose nothing was touched (EMS-8).
        """
        told = lost.encode() if lost else b""
        self._call("survived", self._of(mid, id), mid=mid, token=token, id=id, lost=told)

    def reclaim(self, mid: str, start: Start) -> None:
        """Put a start that still runs on record again, after its worker was taken for dead.

        Raises:
            StaleDelivery: the message has a new owner, or has ended elsewhere.
        """
        self._call("reclaim", self._of(mid, start.id), mid=mid, start=start.encode())

    def acquit(self, mid: str, start: Start, *, final: bool, copy: bool = False) -> None:
        """Clear the flag of a message that ended alive; after its last run its record goes too.

        Args:
            copy: nobody knows whether the broker heard of it, and a copy may come: its start stays.
        """
        told: dict[str, Any] = {"mid": mid, "start": start.encode()}
        self._call("acquit", self._of(mid, start.id), **told, final=int(final), copy=int(copy))

    def duplicate(self, mid: str, start: Start, *, reason: str) -> None:
        """Journal a copy that is acknowledged without running."""
        self._call("duplicate", {}, mid=mid, start=start.encode(), reason=reason)

    def quarantine(
        self,
        mid: str,
        start: Start,
        *,
        cause: str,
        reason: str,
        fields: Mapping[str, str | bytes | int],
        block_after: int | None = None,
        known: Known = NOTHING_KNOWN,
    ) -> bool:
        """Store the original message (NDLV); False when it was stored before. Acknowledge it only then.

        Args:
            block_after: convictions of one fingerprint after which it is blocked (NEW-3), 0 for never;
                None: this is no conviction.
            known: what else is known about the message.

        Raises:
            IllegalTransition: a person gave the message up.
            StaleDelivery: it runs elsewhere.
        """
        flat = [word for pair in fields.items() for word in pair]
        fingerprint = str(fields.get("fingerprint", ""))
        reply = self._call(
            "quarantine",
            {**self._of(mid, start.id), "convictions": self.keys.convictions(fingerprint)},
            rest=flat,
            fingerprint=fingerprint,
            block_after="" if block_after is None else block_after,
            remember_ms=REMEMBER_CONVICTIONS_MS,
            known=_packed(known),
            mid=mid,
            start=start.encode(),
            cause=cause,
            reason=reason,
        )
        return bool(reply[0] is Code.OK)

    def would_quarantine(
        self, mid: str, start: Start, *, cause: str, reason: str, known: Known = NOTHING_KNOWN
    ) -> None:
        """Journal and count a conviction of which nothing comes (``poison_observe_only``)."""
        told: dict[str, Any] = {"mid": mid, "start": start.encode(), "cause": cause, "reason": reason}
        told["known"] = _packed(known)
        self._call("would_quarantine", {"lineage": self.keys.lineage(start.id)}, **told)

    # --- a message that has to wait ------------------------------------------------------------

    def park(self, mid: str, seen: bytes, start: Start, *, number: int, parcel: bytes) -> bool:
        """Keep a copy that may not run now; when this returns True it may be acknowledged (TP1-8).

        Args:
            seen: the raw start that stands in its way; False when that has changed.
            number: of the parking that published this copy, 0 for none.
            parcel: the original message, packed.
        """
        arguments = {"mid": mid, "seen": seen, "start": start.encode(), "number": number, "parcel": parcel}
        return self._call("park", {}, **arguments)[0] is not Code.CONFLICT

    def unpark(self, mid: str, number: int) -> bool:
        """Note that a parked message was published again; False when that parking is none any more."""
        return bool(self._call("unpark", {}, mid=mid, number=number)[0] is Code.OK)

    def forget(self, mid: str, seen: bytes) -> None:
        """Take a parking off the books that ended long ago, unless it has changed."""
        self._call("forget", {}, mid=mid, seen=seen)

    # --- a person's decision -------------------------------------------------------------------

    def decide(self, mid: str, verb: str, actor: str) -> int:
        """Reserve a message in quarantine for one operator; return the number of the decision.

        Raises:
            MessageNotFound, IllegalTransition: it is not in quarantine.
            DecisionPending: another operator is at it.
        """
        arguments: dict[str, Any] = {"verb": verb, "actor": actor, "patience_ms": DECISION_PATIENCE_MS}
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

    # --- workers and monitors ------------------------------------------------------------------

    def beat(
        self, worker: str, fields: Mapping[str, str | int], *, first: bool = False, run_id: str = ""
    ) -> None:
        """Renew the lease of a worker.

        Args:
            run_id: of the Redis at which its processes are subscribed to its channel; empty: they are not.

        Raises:
            Fenced: it had been declared dead, and this incarnation never comes back.
        """
        flat = [word for pair in fields.items() for word in pair]
        keys = {"worker": self.keys.worker(worker)}
        self._call("beat", keys, rest=flat, worker=worker, first=int(first), run_id=run_id)

    def retire(self, worker: str) -> None:
        """Take a worker off the books that ends in peace."""
        self._call("retire", {"worker": self.keys.worker(worker)}, worker=worker)

    def lead(self, worker: str, ttl_ms: int, run_id: str = "") -> tuple[int, bool] | None:
        """Take or keep the monitor's lock; return its fencing number and whether it changed hands.

        It is free when its holder's connections are gone, or when it was not renewed for ``ttl_ms``.
        """
        arguments: dict[str, Any] = {"worker": worker, "ttl_ms": ttl_ms, "run_id": run_id}
        reply = self._call("lead", {}, patience_ms=GONE_PATIENCE_MS, alive=self.keys.alive, **arguments)
        return (int(reply[1]), bool(reply[2])) if reply[0] is Code.OK else None

    def is_buried(self, worker: str) -> bool:
        """Whether this incarnation was declared dead."""
        with clear_errors("asking whether a worker was declared dead"):
            return self.client.zscore(self.keys.buried, worker) is not None

    def watch(self, activation_ms: int) -> Fleet:
        """Look at all workers once, and note whose connections are gone."""
        words = {"activation_ms": activation_ms, "patience_ms": GONE_PATIENCE_MS, "alive": self.keys.alive}
        reply = self._call("watch", {}, **words)
        run_id, *flat = [word.decode() for word in reply[2:]]
        return Fleet(int(reply[1]), run_id, dict(zip(flat[::2], map(Silence, flat[1::2]), strict=True)))

    def bury(
        self,
        worker: str,
        incident: str,
        how: Silence,
        activation_ms: int,
        fence: int,
        gate: GateLimits | None = None,
        earlier: Sequence[str] = (),
    ) -> Burial | None:
        """Declare a worker dead; return None when it lives or is gone already.

        Args:
            gate: what closes the fleet gate; None: nothing.
            earlier: workers with whose deaths it has a message in common: they count once.

        Raises:
            Fenced: another monitor took over.
        """
        keys = {"worker": self.keys.worker(worker), "incident": self.keys.incident(incident)}
        arguments: dict[str, Any] = {
            "worker": worker,
            "incident": incident,
            "how": how.value,
            "activation_ms": activation_ms,
            "patience_ms": GONE_PATIENCE_MS,
            "alive": self.keys.alive,
            "fence": fence,
            "workers": self.keys.worker(""),
            "gate_share": gate.share if gate else "",
            "gate_workers": gate.workers if gate else 0,
            "window_ms": gate.window_ms if gate else 0,
            "earlier": "",
        }
        code, *told = self._call("bury", keys, rest=earlier, **arguments)
        if code is not Code.OK:
            return None
        cause, closed, deaths, fleet = told
        return Burial(cause.decode(), bool(closed), deaths, fleet)

    def lift_gate(self, actor: str = "", note: str = "") -> bool:
        """Lift the fleet gate: deaths convict again. Returns whether it was closed.

        Args:
            actor: empty for a monitor, which lifts it only when its time is over.
        """
        return bool(self._call("lift_gate", {}, actor=actor, note=note)[0] is Code.OK)

    def close(
        self,
        worker: str,
        incident: str,
        *,
        flagged: int,
        put_back: int,
        returned: Mapping[str, int],
        fence: int,
    ) -> None:
        """Finish an incident.

        Args:
            returned: queue -> number of messages put back into it.

        Raises:
            Fenced: another monitor took over.
        """
        keys = {"incident": self.keys.incident(incident)}
        arguments: dict[str, Any] = {
            "worker": worker,
            "incident": incident,
            "flagged": flagged,
            "put_back": put_back,
            "returned": json.dumps(returned),
            "fence": fence,
            "bounds": " ".join(map(str, RECOVERY_BOUNDS)),
        }
        self._call("close", keys, **arguments)


def _packed(known: Known) -> str:
    # Redis reads no text that is not Unicode; a file name may be.
    whole = {name: value.encode("utf-8", "replace").decode() for name, value in known.items() if value}
    return json.dumps(whole)


def _fence(number: int | None) -> str:
    return "" if number is None else str(number)


def _recorded(reply: list[Any]) -> Recorded:
    if reply[0] is Code.DONE:
        return Recorded(History(), finished=True)
    return Recorded(history_of(pairs(reply[1])), gate_closed=len(reply) > 2 and bool(reply[2]))


def pairs(flat: Sequence[bytes]) -> dict[str, str]:
    """Return the flat reply of HGETALL as a dictionary of text."""
    words = [word.decode("utf-8", "replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))
