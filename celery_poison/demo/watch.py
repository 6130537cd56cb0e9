"""How things stand at one moment: what the screen draws and the pipe tells."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from celery_poison import Quarantine, State
from celery_poison.causes import describe
from celery_poison.demo.poisons import HEALTHY, POISONS, Poison
from celery_poison.demo.stage import SLOTS, Load, Stage
from celery_poison.model import MessageRecord

#: Where a poison message stands -> what is said of it.
FATES = {
    "waiting": "waits in its queue",
    "killing": "has killed",
    "candidate": "candidate: it runs alone from now on",
    "quarantined": "in quarantine: {cause}",
    "released": "repaired and released: its result arrived",
    "failed": "given up: its caller was told",
}
DECIDED = ("quarantined", "released", "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """One poison; ``kills`` are those that it counted itself, ``fate`` is one of FATES."""

    poison: Poison
    kills: int
    fate: str
    cause: str = ""

    @property
    def loops(self) -> bool:
        """Whether it kills more often than the plugin would let it."""
        return self.fate == "killing" and self.kills > 2

    @property
    def sentence(self) -> str:
        return "kills again and again" if self.loops else FATES[self.fate].format(cause=describe(self.cause))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Attributes:
    workers: name -> whether it consumes at this moment.
    strangers: healthy tasks in quarantine.
    """

    seconds: float
    sent: int
    done: int
    workers: Mapping[str, bool]
    worker_deaths: int
    pool_deaths: int
    rows: tuple[Row, ...]
    strangers: int = 0

    @property
    def waiting(self) -> int:
        return self.sent - self.done

    @property
    def kept(self) -> int:
        """How many poison messages went into quarantine, those about which somebody decided since too."""
        return sum(row.fate in DECIDED for row in self.rows)


class Watch:
    """Looks at a stage, with or without the plugin on it."""

    def __init__(self, stage: Stage, load: Load, quarantine: Quarantine | None) -> None:
        self._stage, self._load, self._quarantine = stage, load, quarantine
        self._since = time.monotonic()
        #: Poisons whose result arrived: nothing in the ledger remembers them any more.
        self.released: set[str] = set()

    @property
    def seconds(self) -> float:
        """Since the watch began."""
        return time.monotonic() - self._since

    def look(self) -> Snapshot:
        supervisor, tally, records = self._stage.workers, self._stage.tally, self._records()
        kills, ids = tally.counts("killed"), self._load.poison
        return Snapshot(
            seconds=self.seconds,
            sent=len(self._load.healthy),
            done=len(tally.counts("finished")),
            workers={worker.name: worker.is_ready() and worker.is_alive() for worker in supervisor.workers},
            worker_deaths=len(supervisor.deaths),
            pool_deaths=tally.pool_deaths(SLOTS),
            rows=tuple(self._row(p, kills.get(p.name, 0), records.get(ids[p.name])) for p in POISONS),
            strangers=sum(record.task == HEALTHY and record.state == "NDLV" for record in records.values()),
        )

    def _records(self) -> dict[str, MessageRecord]:
        """Return what the ledger knows, by task id; a message that moved meanwhile counts where it went."""
        quarantine = self._quarantine
        if quarantine is None:
            return {}
        found = quarantine.list(candidates=True) + quarantine.list() + quarantine.list(state=State.FAIL)
        return {record.id: record for record in found}

    def _row(self, poison: Poison, kills: int, record: MessageRecord | None) -> Row:
        if poison.name in self.released:
            return Row(poison, kills, "released")
        if record is None:
            return Row(poison, kills, "killing" if kills else "waiting")
        fates = {State.NDLV: "quarantined", State.FAIL: "failed"}
        return Row(poison, kills, fates.get(State(record.state), "candidate"), record.cause)
