"""Transitions of workers and of the monitors that watch them, and what they leave each other to tell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Caller, Code
from celery_poison.states import State

#: Bounds of the histogram of recoveries: seconds from a worker's death until all of it was put back.
RECOVERY_BOUNDS = (0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)

#: For so long all connections of a worker must be gone before it counts as dead. A live process whose
#: connection was cut is back within milliseconds.
GONE_PATIENCE_MS = 1000

#: For so long it is remembered that the end of a main process was seen: later, the patience is over anyway.
WORD_MS = 10_000


class Silence(StrEnum):
    """In what way a worker is not well."""

    GONE = "gone"
    """The connections of all its processes are gone, and stayed gone."""
    SILENT = "silent"
    """No heartbeat for the activation interval, and its connections cannot be counted."""
    FROZEN = "frozen"
    """No heartbeat for the activation interval, though its connections stand."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What ``watch`` saw: how many workers' connections can be counted, when, where; who is unwell."""

    counted: int
    at_ms: int
    run_id: str
    unwell: dict[str, Silence]


@dataclass(frozen=True, slots=True)
class GateLimits:
    """What closes the fleet gate: the settings ``fleet_gate_*``, times in ms."""

    share: float
    workers: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class DeclaredDead:
    """A worker was declared dead.

    Attributes:
        closed_gate: this death closed the fleet gate.
        deaths: nodes that died within the gate's window; 0 where they are not counted.
        fleet: of how many.
    """

    cause: str
    closed_gate: bool = False
    deaths: int = 0
    fleet: int = 0


class FleetTransitions(Caller):
    """Who lives, who leads, who died, and how many at once.

    What takes a ``fence`` raises ``Fenced`` when another monitor took over.
    """

    def beat(
        self, worker: str, fields: Mapping[str, str | int], *, first: bool = False, run_id: str = ""
    ) -> None:
        """Renew the lease of a worker.

        Args:
            run_id: of the Redis at which its processes are subscribed to its channel; empty: they are not.

        Raises:
            Fenced: it had been declared dead, and this incarnation never comes back.
        """
        self.call("beat", rest=fields, worker=worker, first=first, run_id=run_id)

    def retire(self, worker: str) -> None:
        """Take a worker off the books that ends in peace."""
        self.call("retire", worker=worker)

    def ended(self, worker: str) -> None:
        """Say that the main process of a worker is no more: once its connections are gone, it is dead."""
        with clear_errors("saying that a worker has ended"):
            self.client.set(self.keys.ended(worker), 1, px=WORD_MS)

    def lead(self, worker: str, ttl_ms: int, run_id: str = "") -> tuple[int, bool] | None:
        """Take or keep the monitor's lock; return its fencing number and whether it changed hands.

        It is free when its holder's connections are gone, or when it was not renewed for ``ttl_ms``.
        """
        words: dict[str, Any] = {"ttl_ms": ttl_ms, "run_id": run_id, "patience_ms": GONE_PATIENCE_MS}
        reply = self.call("lead", worker=worker, **words)
        return (int(reply[1]), bool(reply[2])) if reply[0] is Code.OK else None

    def is_declared_dead(self, worker: str) -> bool:
        """Whether this incarnation was declared dead."""
        with clear_errors("asking whether a worker was declared dead"):
            return self.client.zscore(self.keys.buried, worker) is not None

    def watch(self, activation_ms: int) -> Fleet:
        """Look at all workers once, and note whose connections are gone."""
        reply = self.call("watch", activation_ms=activation_ms, patience_ms=GONE_PATIENCE_MS)
        run_id, *flat = [word.decode() for word in reply[3:]]
        unwell = dict(zip(flat[::2], map(Silence, flat[1::2]), strict=True))
        return Fleet(int(reply[1]), int(reply[2]), run_id, unwell)

    def declare_dead(
        self,
        worker: str,
        incident: str,
        how: Silence,
        activation_ms: int,
        fence: int,
        gate: GateLimits | None = None,
        earlier: Sequence[str] = (),
        *,
        evidence: str = "",
        seen_ms: int = 0,
    ) -> DeclaredDead | None:
        """Declare a worker dead; return None when it lives or is gone already.

        Args:
            gate: what closes the fleet gate; None: nothing.
            earlier: workers with whose deaths it has a message in common: they count once.
            evidence: what is known about its death, as JSON.
            seen_ms: when it was last seen to be connected, by Redis' clock; 0: it was not looked for.
        """
        share, workers, window = (gate.share, gate.workers, gate.window_ms) if gate else (None, 0, 0)
        words: dict[str, Any] = {"gate_share": share, "gate_workers": workers, "window_ms": window}
        words |= {"how": how, "evidence": evidence, "seen_ms": seen_ms, "activation_ms": activation_ms}
        words |= {"worker": worker, "incident": incident, "fence": fence, "patience_ms": GONE_PATIENCE_MS}
        code, *reply = self.call("declare_dead", rest=earlier, **words)
        if code is not Code.OK:
            return None
        cause, closed, deaths, fleet = reply
        return DeclaredDead(cause.decode(), bool(closed), deaths, fleet)

    def lift_gate(self, actor: str = "", note: str = "") -> bool:
        """Lift the fleet gate: deaths convict again. Returns whether it was closed.

        Args:
            actor: empty for a monitor, which lifts it only when its time is over.
        """
        return self.call("lift_gate", actor=actor, note=note)[0] is Code.OK

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
        """
        counts: dict[str, Any] = {"flagged": flagged, "put_back": put_back, "returned": json.dumps(returned)}
        bounds = " ".join(map(str, RECOVERY_BOUNDS))
        self.call("close", worker=worker, incident=incident, fence=fence, **counts, bounds=bounds)


# --- notices ------------------------------------------------------------------------------------------
#
# What became of a task while no worker was at hand to say so; the next one that is heard tells Flower. Only
# a live worker may send an event: in any other name it would make one appear in Flower that does not exist.
# Nothing is decided by it, and what is not true any more when it is taken is dropped.

#: Tasks that are remembered, and for how many seconds, where no worker takes them.
MAX_NOTICES = 10_000
LIFETIME = 86_400

#: What a log says of a death that is not proven yet: of task and id, how it died, and its deaths so far.
SUSPECTED = "celery_poison: Task %s[%s] %s; it is a candidate now (death %d)"


class Fact(StrEnum):
    """What happened to a task; the last three are what people decide."""

    CANDIDATE = "candidate"
    RELEASED = "release"
    FAILED = "fail"
    DISCARDED = "discard"


@dataclass(frozen=True, slots=True)
class Notice:
    """One fact about one task; of several the newest counts."""

    id: str
    fact: Fact
    story: str
    mid: str = ""


def leave_notices(ledger: Caller, notices: Iterable[Notice]) -> None:
    """Leave notices for a worker that sends events, in one step; too many are forgotten."""
    if rest := [(each.id, json.dumps([each.fact, each.mid, each.story])) for each in notices]:
        ledger.call("leave_notice", rest=rest, most=MAX_NOTICES, lifetime_ms=LIFETIME * 1000)


def take_notices(ledger: Caller) -> list[Notice]:
    """Take all notices that are still true; no other worker gets them."""
    flat = ledger.call("take_notices")[1]
    if not flat:
        return []
    found = []
    for id, line in zip(flat[::2], flat[1::2], strict=True):
        fact, mid, story = json.loads(line)
        found.append(Notice(id.decode("utf-8", "replace"), Fact(fact), story, mid))
    with clear_errors("reading whether notices are true"):
        pipe = ledger.client.pipeline(transaction=False)
        for notice in found:
            pipe.zscore(ledger.keys.candidates, notice.id)
            pipe.hget(ledger.keys.message(notice.mid), "state")
        seen = pipe.execute()
    rows = zip(found, seen[::2], seen[1::2], strict=True)
    return [notice for notice, flagged, state in rows if _is_true(notice, flagged, state)]


def _is_true(notice: Notice, flagged: float | None, state: bytes | None) -> bool:
    if notice.fact in (Fact.CANDIDATE, Fact.RELEASED):
        # Once it has run, its worker has reported how it ended; RETRY would stand over that for ever.
        return flagged is not None
    return state is None or state.decode() == State.FAIL
