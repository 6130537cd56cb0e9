"""Histories whose truth is known, of every shape that fleets have: with a culprit or without (NEW-22).

Each is a journal of some ten thousand attempts, as an Arrow table: :func:`history` makes it of a world's name
and a seed. ``benchmarks/audit.py`` judges hundreds of them, ``test_audit.py`` a few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from celery_poison.pipeline.schema import FIELDS

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

TASKS, HOSTS, DAYS, DEPLOY_DAYS = 145, 8, 30, 3
START_MS = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp() * 1000)
DAY_S = 86_400.0


@dataclass
class Runs:
    """Attempts as they are drawn, before any of them dies.

    Attributes:
        at: seconds since the history began; ms: run time; rate: risk of each run, up to a factor for all.
        release: number of the release that the run's worker had.
        pods: ``host`` is a node, and every day has a new pod on it.
    """

    dice: np.random.Generator
    task: Codes
    host: Codes
    at: Floats
    ms: Floats
    pods: bool = False
    rate: Floats = field(default_factory=lambda: np.ones(1))

    @property
    def day(self) -> Codes:
        return (self.at // DAY_S).astype(np.int64)

    @property
    def release(self) -> Codes:
        return self.day // DEPLOY_DAYS


#: Sets the risk of each run, and whatever else a world has of its own.
World = Callable[[Runs], None]


def per_second(runs: Runs) -> None:
    """The longer a run, the likelier its death."""
    runs.rate = runs.ms.copy()


def per_start(runs: Runs) -> None:
    """Each start has the same risk: an import that crashes, a bad decode."""
    runs.rate = np.ones_like(runs.ms)


def hosts_of_different_speed(runs: Runs) -> None:
    """Each start has the same risk, and some hosts take six times as long as others."""
    runs.ms *= np.geomspace(1, 6, HOSTS)[runs.host]
    per_start(runs)


def bad_days_of_hosts(runs: Runs) -> None:
    """Each host has good and bad days: the variance between them is that of an exponential law."""
    of_day = runs.dice.gamma(1.0, 1.0, (HOSTS, DAYS))
    runs.rate = runs.ms * of_day[runs.host, runs.day]


def bad_days_of_tasks(runs: Runs) -> None:
    """Each task has good and bad days: its input is of another kind."""
    of_day = runs.dice.gamma(1.0, 1.0, (TASKS, DAYS))
    runs.rate = runs.ms * of_day[runs.task, runs.day]


def outage(runs: Runs) -> None:
    """For six hours everything dies forty times as often."""
    begin = runs.dice.uniform(0, DAYS - 1) * DAY_S
    runs.rate = runs.ms * np.where((runs.at >= begin) & (runs.at < begin + 6 * 3600), 40.0, 1.0)


def nights(runs: Runs) -> None:
    """At night there is three times the risk; each task has its own share of night work."""
    at_night = (
        runs.dice.uniform(size=len(runs.at))
        < np.random.default_rng(TASKS).uniform(0.2, 0.7, TASKS)[runs.task]
    )
    runs.at = runs.day * DAY_S + (runs.dice.uniform(0, 8, len(runs.at)) + np.where(at_night, 0, 12)) * 3600
    runs.rate = runs.ms * np.where(at_night, 3.0, 1.0)


def growing_load(runs: Runs) -> None:
    """The risk doubles from the first day to the last, and so does the number of runs."""
    runs.at = np.sqrt(runs.dice.uniform(0.25, 1, len(runs.at))) * DAYS * DAY_S * 2 - DAYS * DAY_S
    runs.rate = runs.ms * (1 + runs.at / (DAYS * DAY_S))


def faster_release(runs: Runs) -> None:
    """From half of the time on the commonest tasks take a quarter of their time; each start has its risk."""
    faster = (runs.release >= DAYS // DEPLOY_DAYS // 2) & (runs.task < 10)
    runs.ms = np.where(faster, runs.ms / 4, runs.ms)
    per_start(runs)


def slower_release(runs: Runs) -> None:
    """Under one release the commonest tasks take eight times as long; each second has its risk."""
    runs.ms = np.where((runs.release == 5) & (runs.task < 10), runs.ms * 8, runs.ms)
    per_second(runs)


def pods(runs: Runs) -> None:
    """Every pod lives for a day, on one of eight nodes."""
    runs.pods = True
    per_second(runs)


def outage_as_a_release_begins(runs: Runs) -> None:
    """On the first day of a release an outage of six hours kills some forty at random, on all hosts."""
    first = runs.dice.integers(1, DAYS // DEPLOY_DAYS) * DEPLOY_DAYS
    begin = (first + runs.dice.uniform(0, 0.75)) * DAY_S
    inside = (runs.at >= begin) & (runs.at < begin + 6 * 3600)
    runs.rate = runs.ms / runs.ms.sum() + inside / max(inside.sum(), 1) * (40 / 410)


def bad_week_of_a_host(runs: Runs) -> None:
    """For a week one host has six times the risk of all others."""
    host, first = runs.dice.integers(0, HOSTS), runs.dice.integers(0, DAYS - 7)
    bad = (runs.host == host) & (runs.day >= first) & (runs.day < first + 7)
    runs.rate = runs.ms * np.where(bad, 6.0, 1.0)


WORLDS: dict[str, World] = {
    "risk per second": per_second,
    "risk per start": per_start,
    "hosts of different speed": hosts_of_different_speed,
    "bad days of hosts": bad_days_of_hosts,
    "outage of six hours": outage,
    "bad days of tasks": bad_days_of_tasks,
    "night work": nights,
    "growing load": growing_load,
    "a faster release": faster_release,
    "a slower release": slower_release,
    "pods of a day": pods,
    "outage at a release": outage_as_a_release_begins,
    "bad week of a host": bad_week_of_a_host,
}
#: Dimensions of which an accusation tells what is so in a world without a culprit.
TRUE: dict[str, tuple[str, ...]] = {
    "outage of six hours": ("time",),
    "outage at a release": ("time",),
    "bad week of a host": ("host", "time"),
}


@dataclass(frozen=True)
class Culprit:
    """What is planted, by its dimension and key in the table ``blame``.

    Attributes:
        times: how many times the risk of what it hits, or what makes :data:`LEAST_DEATHS` if that is more.
    """

    dimension: str
    key: str
    hits: Callable[[Runs], npt.NDArray[np.bool_]]
    times: float


LEAST_DEATHS = 40
CULPRITS = (
    Culprit("host", "app-03", lambda runs: runs.host == 3, 6.0),
    Culprit("task", "shop.task_007", lambda runs: runs.task == 7, 12.0),
    Culprit(
        "task_release", "shop.task_002 @ 2026.5", lambda runs: (runs.task == 2) & (runs.release == 5), 40.0
    ),
    Culprit("release", "2026.5", lambda runs: runs.release == 5, 6.0),
)

NODE = Culprit("node", "node-03", lambda runs: runs.host == 3, 6.0)


def culprits(world: str) -> tuple[Culprit, ...]:
    """Return what may be planted in a world: where hosts last for a day, a node in place of one."""
    return (NODE, *CULPRITS[1:]) if WORLDS[world] is pods else CULPRITS


def history(
    world: str, seed: int, *, culprit: Culprit | None = None, attempts: int = 60_000, deaths: int = 450
) -> pa.Table:
    """Return a journal in the columns that ``tests.pipeline.tallied`` reads.

    Args:
        deaths: how many are to be expected without a culprit.
    """
    dice = np.random.default_rng([seed, *world.encode()])
    shares = 1 / np.arange(2, TASKS + 2) ** 0.8
    task = dice.choice(TASKS, attempts, p=shares / shares.sum())
    # From a tenth of a second to a minute, each task around a length of its own.
    usual = np.geomspace(100, 60_000, TASKS)[np.random.default_rng(seed).permutation(TASKS)]
    runs = Runs(
        dice=dice,
        task=task,
        host=dice.integers(0, HOSTS, attempts),
        at=dice.uniform(0, DAYS * DAY_S, attempts),
        ms=usual[task] * dice.lognormal(0, 0.5, attempts),
    )
    WORLDS[world](runs)
    rate = runs.rate * deaths / runs.rate.sum()
    if culprit is not None:
        hit = culprit.hits(runs)
        rate = np.where(hit, rate * max(culprit.times, 1 + LEAST_DEATHS / rate[hit].sum()), rate)
    return _journal(runs, died=dice.uniform(size=attempts) < 1 - np.exp(-rate))


def _journal(runs: Runs, *, died: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the entries; a run that died took half of its time on average, a first death each."""
    count, ending = len(runs.at), pa.array(died.astype(np.int8))
    ms = np.where(died, runs.ms * runs.dice.uniform(size=count), runs.ms).astype(np.int64)
    names = pa.array([f"m{n}" for n in range(count)])
    worker = _named("main@app-%02d/aaaa", runs.host)
    if runs.pods:
        pods = [f"main@pod-{day}-{host}/aaaa" for day in range(DAYS) for host in range(HOSTS)]
        worker = pa.array(pods).take(pa.array(runs.day * HOSTS + runs.host))
    given: dict[str, Any] = {
        "event": pa.array(["finished", "crashed"]).take(ending),
        "outcome": pa.array(["success", "exact"]).take(ending),
        "cause": pa.array(["", "signal:11"]).take(ending),
        "id": names,
        "mid": names,
        "token": names,
        "task": _named("shop.task_%03d", runs.task),
        "queue": _named("queue-%d", runs.task % 4),
        "worker": worker,
        "release": _named("2026.%d", runs.release),
        "shape": _named("int,dict[%d]", np.random.default_rng(1).integers(0, 3, count)),
        "payload_bytes": (runs.dice.lognormal(7, 2, count)).astype(np.int64),
        "runtime_ms": ms,
        "fingerprint": [f"{n:016x}" for n in runs.dice.integers(0, 2**62, count).tolist()],
        "crashes": died.astype(np.int64),
    }
    at = pa.array((START_MS + (runs.at * 1000).astype(np.int64)) * 1000, pa.timestamp("us", tz="UTC"))
    columns = {"at": at, "seq": pa.array(np.arange(count))}
    for name, kind in FIELDS:
        arrow = pa.int64() if kind.typeName() == "long" else pa.string()
        columns[name] = pa.array(given[name], arrow) if name in given else pa.nulls(count, arrow)
    told = pa.table(columns)
    return pa.concat_tables([_started(told.schema), told]) if runs.pods else told


def _named(pattern: str, numbers: Codes) -> pa.Array:
    """Return a name for each number."""
    return pa.array([pattern % n for n in range(int(numbers.max()) + 1)]).take(pa.array(numbers))


def _started(schema: pa.Schema) -> pa.Table:
    """Return what the pods' workers tell when they start."""
    day_ms = int(DAY_S * 1000)
    rows = [
        {
            "at": datetime.fromtimestamp((START_MS + day * day_ms) / 1000, UTC),
            "seq": host,
            "event": "worker_started",
            "worker": f"main@pod-{day}-{host}/aaaa",
            "note": f"on node-{host:02d}",
        }
        for day in range(DAYS)
        for host in range(HOSTS)
    ]
    return pa.Table.from_pylist(rows, schema=schema)
