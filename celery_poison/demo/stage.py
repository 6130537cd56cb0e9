"""The demo's own Redis server and workers, what is sent to them, how it stands, and nothing left of it."""

from __future__ import annotations

import random
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from celery import Celery

from celery_poison import Quarantine, State
from celery_poison.demo.app import (
    BOMB,
    HEALTHY,
    PLAIN,
    POISONS,
    REDIS,
    SERIALIZER,
    Poison,
    Tally,
    build_app,
)
from celery_poison.demo.programs import Interrupted, end_marked, private_environment
from celery_poison.model import MessageRecord
from celery_poison.testing import RedisServer, Supervisor, Worker

WORKERS = SLOTS = 2
#: Seconds that workers get for a warm shutdown before they are killed.
GRACE = 5.0
#: Every process of one demo carries this in its environment, however it descends from it.
MARK = "POISON_DEMO_ID"
#: What becomes of a message in these states.
FATES = {State.NDLV: "quarantined", State.FAIL: "failed"}
#: Fates of poison messages that came to quarantine.
DECIDED = ("quarantined", "released", "failed")

_COMPLAINTS = re.compile(r": (WARNING|ERROR|CRITICAL)/|^\w+Error: ")
#: Complaints that are told at the end.
_LAST = 15


@dataclass(frozen=True, slots=True)
class PoisonRow:
    """One poison.

    Attributes:
        kills: those that it counted itself.
        fate: as the screen knows it.
        record: as it was in quarantine before a decision; None if it never was there.
    """

    poison: Poison
    kills: int
    fate: str
    record: MessageRecord | None = None


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """How things stand at one moment.

    Attributes:
        workers: name -> whether it consumes at this moment.
        candidates, strangers: task ids of all candidates, and of healthy tasks in quarantine.
    """

    seconds: float
    sent: int
    done: int
    workers: Mapping[str, bool]
    worker_deaths: int
    pool_deaths: int
    rows: tuple[PoisonRow, ...]
    candidates: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()

    @property
    def kept(self) -> int:
        """How many poison messages went into quarantine, those decided about since too."""
        return sum(row.fate in DECIDED for row in self.rows)


class DemoStage:
    """A Redis server, the app on it and its workers.

    Attributes:
        quarantine: None without the plugin.
        healthy, poison: task ids of what was sent, by number and by name.
        released: names of poisons whose result arrived: nothing in the ledger remembers them any more.
        grace: how long its workers may take to stop; lowered when a person waits for the end.
    """

    def __init__(self, redis_url: str, directory: Path, mark: str, *, plain: bool) -> None:
        self.redis_url = redis_url
        self.app: Celery = build_app(redis_url, plain=plain)
        self.tally = Tally(f"{redis_url}/2")
        self.environment = {REDIS: redis_url, PLAIN: str(int(plain))}
        self.quarantine = None if plain else Quarantine(self.app)
        self.healthy: dict[int, str] = {}
        self.poison: dict[str, str] = {}
        self.released: set[str] = set()
        self.grace = GRACE
        self._kept: dict[str, MessageRecord] = {}
        self._since = time.monotonic()
        # billiard leaves a directory behind for every worker that is killed: it goes with ours. There is also
        # nothing that they could import by mistake.
        env = private_environment() | self.environment | {MARK: mark, "TMPDIR": str(directory)}

        def make(name: str) -> Worker:
            app, log = "celery_poison.demo.app", directory / f"{name}.log"
            return Worker(app, name=name, concurrency=SLOTS, env=env, cwd=directory, log_path=log)

        self.workers = Supervisor(make, WORKERS, give_up_after=1000)

    def send(self, order: list[int | Poison]) -> None:
        """Send everything in this order, as any producer would."""
        tasks = self.app.tasks
        with self.app.producer_pool.acquire(block=True) as producer:
            for item in order:
                if isinstance(item, int):
                    self.healthy[item] = tasks[HEALTHY].apply_async((item,), producer=producer).id
                else:
                    options = {"serializer": SERIALIZER} if item is BOMB else {}
                    self.poison[item.name] = tasks[item.task].apply_async(producer=producer, **options).id

    def look(self) -> StageSnapshot:
        """Ask the tasks' own counts, the supervisor and the ledger how things stand."""
        suspects, found = [], []
        if self.quarantine is not None:
            suspects = self.quarantine.list(candidates=True)
            found = suspects + self.quarantine.list() + self.quarantine.list(state=State.FAIL)
        records = {record.id: record for record in found}  # what moved meanwhile counts where it went
        kills = self.tally.counts("killed")
        born = self.tally.counts("born").values()
        return StageSnapshot(
            seconds=time.monotonic() - self._since,
            sent=len(self.healthy),
            done=len(self.tally.counts("finished")),
            workers={worker.name: worker.is_ready() and worker.is_alive() for worker in self.workers.workers},
            worker_deaths=len(self.workers.deaths),
            # Pool processes that were replaced in workers that went on living.
            pool_deaths=sum(max(0, number - SLOTS) for number in born),
            rows=tuple(self._row(p, kills.get(p.name, 0), records.get(self.poison[p.name])) for p in POISONS),
            candidates=tuple(
                one.id for one in suspects if records[one.id].state not in (State.NDLV, State.FAIL)
            ),
            strangers=tuple(id for id, one in records.items() if one.task == HEALTHY and one.state == "NDLV"),
        )

    def _row(self, poison: Poison, kills: int, record: MessageRecord | None) -> PoisonRow:
        if record is not None and record.state == State.NDLV:
            self._kept[poison.name] = record
        kept = self._kept.get(poison.name)
        if poison.name in self.released:
            return PoisonRow(poison, kills, "released", kept)
        if record is None:
            return PoisonRow(poison, kills, "killing" if kills else "waiting", kept)
        return PoisonRow(poison, kills, FATES.get(State(record.state), "candidate"), kept)

    def complaints(self) -> list[str]:
        """Return the last complaints in the workers' logs."""
        log = self.workers.log_text().splitlines()
        return [line for line in log if _COMPLAINTS.search(line)][-_LAST:]


def plan(healthy: int, seed: int) -> list[int | Poison]:
    """Return the order of sending: the healthy by number, each poison at a random place among them."""
    order: list[int | Poison] = list(range(healthy))
    chance = random.Random(seed)
    for poison in chance.sample(POISONS, len(POISONS)):
        order.insert(chance.randint(0, len(order)), poison)
    return order


@contextmanager
def open_stage(*, plain: bool) -> Iterator[DemoStage]:
    """Start Redis; the workers wait for ``stage.workers.start()``. Whatever happens, all of it ends.

    Args:
        plain: leave the plugin out.

    Raises:
        FileNotFoundError: there is no redis-server.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-poison-demo-")))
        server, mark = stack.enter_context(RedisServer()), secrets.token_hex(8)
        stage = DemoStage(server.url().rpartition("/")[0], directory, mark, plain=plain)
        stack.callback(end_marked, MARK, mark)
        # Before the start: one that is broken off half-way is undone too.
        stack.callback(lambda: stage.workers.stop(stage.grace))
        stack.callback(stage.app.close)
        try:
            yield stage
        except (Interrupted, OSError):
            stage.grace = 0.0
            raise
