"""Transitions of workers and of the monitors that watch them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_poison.basics.text import decoded
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Code, LedgerPart

#: Bounds of the histogram of recoveries: seconds from a worker's death until all of it was put back.
RECOVERY_BOUNDS = (0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)

#: For so long all connections of a worker must be gone before it counts as dead. A live process whose
#: connection was cut is back within milliseconds.
GONE_PATIENCE_MS = 1000

#: Milliseconds for which the end of a main process is remembered: later, the patience is over anyway.
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
    """What ``watch`` saw: how many workers, and connections of how many, when, where; who is unwell.

    Attributes:
        due: seconds until a worker that is well at this moment can be unwell.
        gate_is_over: the fleet gate is closed, and its time is over.
        open: workers whose deaths are not finished with.
        parked: messages.
        leaves_in: seconds until a message leaves quarantine by itself; None: none does.
        channels: of the workers that are connected.
    """

    leases: int
    counted: int
    at_ms: int
    run_id: str
    unwell: dict[str, Silence]
    due: float
    gate_is_over: bool
    open: int
    parked: int
    leaves_in: float | None
    channels: tuple[str, ...]

    @property
    def kinds_of_work(self) -> int:
        """How many of these there are: what is parked, what is to leave quarantine, deaths."""
        return bool(self.parked) + (self.leaves_in is not None) + bool(self.open)

    @property
    def has_work(self) -> bool:
        """Whether there is more to do than to wait: the connections of a worker are gone, for one."""
        return bool(self.unwell or self.open or self.parked) or len(self.channels) < self.counted


@dataclass(frozen=True, slots=True)
class GateLimits:
    """The limits that close the fleet gate: the settings ``fleet_gate_*``, times in ms."""

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


class FleetTransitions(LedgerPart):
    """Who lives, who leads, who died, and how many at once.

    What takes a ``fence`` raises ``Fenced`` when another monitor took over.
    """

    def beat(
        self, worker: str, fields: Mapping[str, str | int], *, first: bool = False, run_id: str = ""
    ) -> int:
        """Renew the lease of a worker; return how many commands this Redis has refused since it started.

        Args:
            run_id: of the Redis at which its processes are subscribed to its channel; empty: they are not.

        Raises:
            Fenced: it had been declared dead, and this incarnation never comes back.
        """
        reply = self._scripts.call("beat", rest=fields, worker=worker, first=first, run_id=run_id)
        return int(reply[1])

    def retire(self, worker: str) -> None:
        """Take a worker off the books that ends in peace."""
        self._scripts.call("retire", worker=worker)

    def ended(self, worker: str) -> None:
        """Note that the main process of a worker has ended: once its connections are gone, it is dead."""
        with clear_errors("saying that a worker has ended"):
            pipe = self._scripts.client.pipeline(transaction=False)
            pipe.set(self._scripts.keys.ended(worker), 1, px=WORD_MS)
            pipe.publish(self._scripts.keys.news, worker)
            pipe.execute()

    def lead(self, worker: str, ttl_ms: int, run_id: str = "") -> tuple[int, bool] | None:
        """Take or keep the monitor's lock; return its fencing number and whether it changed hands.

        It is free when its holder's connections are gone, or when it was not renewed for ``ttl_ms``.
        """
        words: dict[str, Any] = {"ttl_ms": ttl_ms, "run_id": run_id, "patience_ms": GONE_PATIENCE_MS}
        reply = self._scripts.call("lead", worker=worker, **words)
        return (int(reply[1]), bool(reply[2])) if reply[0] is Code.OK else None

    def is_declared_dead(self, worker: str) -> bool:
        """Whether this incarnation was declared dead."""
        with clear_errors("asking whether a worker was declared dead"):
            return self._scripts.client.zscore(self._scripts.keys.buried, worker) is not None

    def watch(self, activation_ms: int) -> Fleet:
        """Look at all workers once, and note whose connections are gone."""
        reply = self._scripts.call("watch", activation_ms=activation_ms, patience_ms=GONE_PATIENCE_MS)
        leases, counted, at_ms, run_id, due_ms, gate, incidents, parked, leaves_ms, unwell, channels = reply[
            1:
        ]
        words = [decoded(word) for word in unwell]
        return Fleet(
            leases=leases,
            counted=counted,
            at_ms=at_ms,
            run_id=decoded(run_id),
            unwell=dict(zip(words[::2], map(Silence, words[1::2]), strict=True)),
            due=due_ms / 1000,
            gate_is_over=bool(gate),
            open=incidents,
            parked=parked,
            leaves_in=leaves_ms / 1000 if leaves_ms >= 0 else None,
            channels=tuple(sorted(map(decoded, channels))),
        )

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
        code, *reply = self._scripts.call("declare_dead", rest=earlier, **words)
        if code is not Code.OK:
            return None
        cause, closed, deaths, fleet = reply
        return DeclaredDead(decoded(cause), bool(closed), deaths, fleet)

    def lift_gate(self, actor: str = "", note: str = "") -> bool:
        """Lift the fleet gate: deaths convict again. Returns whether it was closed.

        Args:
            actor: empty for a monitor, which lifts it only when its time is over.
        """
        return self._scripts.call("lift_gate", actor=actor, note=note)[0] is Code.OK

    def close_incident(
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
        self._scripts.call("close", worker=worker, incident=incident, fence=fence, **counts, bounds=bounds)
