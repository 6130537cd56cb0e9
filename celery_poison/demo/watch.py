"""How things stand at one moment: what the screen draws and the pipe tells."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from celery_poison import Quarantine, State
from celery_poison.causes import describe
from celery_poison.demo.load import Load
from celery_poison.demo.poisons import POISONS, Poison
from celery_poison.demo.stage import SLOTS, Stage
from celery_poison.demo.tasks import HEALTHY
from celery_poison.records import MessageRecord


class Fate(Enum):
    """Where a poison message stands."""

    WAITING = "waiting"
    KILLING = "killing"
    CANDIDATE = "candidate"
    QUARANTINED = "quarantined"
    RELEASED = "released"
    FAILED = "failed"


_KEPT = (Fate.QUARANTINED, Fate.RELEASED, Fate.FAILED)


@dataclass(frozen=True, slots=True)
class Row:
    """One poison; ``kills`` are those that it counted itself."""

    poison: Poison
    kills: int
    fate: Fate
    cause: str = ""

    @property
    def loops(self) -> bool:
        """Whether it kills more often than the plugin would let it."""
        return self.fate is Fate.KILLING and self.kills > 2

    @property
    def sentence(self) -> str:
        match self.fate:
            case Fate.WAITING:
                return "waits in its queue"
            case Fate.KILLING:
                return "kills again and again" if self.loops else "has killed"
            case Fate.CANDIDATE:
                return "candidate: it runs alone from now on"
            case Fate.QUARANTINED:
                return f"in quarantine: {describe(self.cause)}"
            case Fate.RELEASED:
                return "repaired and released: its result arrived"
            case Fate.FAILED:
                return "given up: its caller was told"


@dataclass(frozen=True, slots=True)
class Snapshot:
    seconds: float
    sent: int
    done: int
    workers: Mapping[str, bool]  #: name -> whether it consumes at this moment
    worker_deaths: int
    pool_deaths: int
    rows: tuple[Row, ...]
    strangers: int = 0  #: healthy tasks in quarantine

    @property
    def waiting(self) -> int:
        return self.sent - self.done

    @property
    def kept(self) -> int:
        """How many poison messages went into quarantine, those about which somebody decided since too."""
        return sum(row.fate in _KEPT for row in self.rows)


class Watch:
    """Looks at a stage, with or without the plugin on it."""

    def __init__(self, stage: Stage, load: Load, quarantine: Quarantine | None) -> None:
        self._stage = stage
        self._load = load
        self._quarantine = quarantine
        self._since = time.monotonic()
        self._released: set[str] = set()

    @property
    def seconds(self) -> float:
        """Since the watch began."""
        return time.monotonic() - self._since

    def mark_released(self, poison: Poison) -> None:
        """Its result arrived: nothing in the ledger remembers it any more."""
        self._released.add(poison.name)

    def look(self) -> Snapshot:
        supervisor = self._stage.workers
        records = self._records()
        return Snapshot(
            seconds=self.seconds,
            sent=len(self._load.healthy),
            done=self._stage.tally.finished_count(),
            workers={worker.name: worker.is_ready() and worker.is_alive() for worker in supervisor.workers},
            worker_deaths=len(supervisor.deaths),
            pool_deaths=self._stage.tally.pool_deaths(SLOTS),
            rows=self._rows(records),
            strangers=sum(_is_stranger(record) for record in records.values()),
        )

    def _rows(self, records: Mapping[str, MessageRecord]) -> tuple[Row, ...]:
        kills = self._stage.tally.kills(poison.name for poison in POISONS)
        return tuple(
            self._row(poison, kills[poison.name], records.get(self._load.poison[poison.name]))
            for poison in POISONS
        )

    def _records(self) -> dict[str, MessageRecord]:
        """Return what the ledger knows, by task id; a message that moved meanwhile counts where it went."""
        quarantine = self._quarantine
        if quarantine is None:
            return {}
        found = quarantine.list(candidates=True) + quarantine.list() + quarantine.list(state=State.FAIL)
        return {record.id: record for record in found}

    def _row(self, poison: Poison, kills: int, record: MessageRecord | None) -> Row:
        if poison.name in self._released:
            return Row(poison, kills, Fate.RELEASED)
        if record is None:
            return Row(poison, kills, Fate.KILLING if kills else Fate.WAITING)
        match record.state:
            case State.NDLV:
                return Row(poison, kills, Fate.QUARANTINED, record.cause)
            case State.FAIL:
                return Row(poison, kills, Fate.FAILED, record.cause)
        return Row(poison, kills, Fate.CANDIDATE, record.cause)


def _is_stranger(record: MessageRecord) -> bool:
    return record.task == HEALTHY and record.state == State.NDLV
