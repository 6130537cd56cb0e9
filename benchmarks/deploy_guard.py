"""The deploy guard on good and bad deploys: messages harmed, tasks paused, and throughput with and without.

    python deploy_guard.py --deploys 30 --jobs 2 --pairs 5

A round is two workers of four processes that find a backlog of `--each` messages for 30 fine tasks, one that
dies always and one that dies in every third run. Deploys run `--jobs` at a time, pairs for throughput alone.
Prints JSON: see README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import redis

from celery_poison.testing import RedisServer, Worker

FINE, WORKERS, SLOTS, PATIENCE = 30, 2, 4, 180.0
#: Messages of one task that may die, and throughput with the guard over that without.
MOST_HARMED, LEAST_WITHIN, LEAST_AFTER = 3, 0.9, 0.98


class Round(NamedTuple):
    """What one deploy came to.

    Attributes:
        done: times at which runs of fine tasks ended, of the backlog.
        ready: when the workers were; opened: when the last fine task ran as ever; None: no guard.
        harmed: task -> messages that died.
        paused: tasks.
        later: seconds that as many messages took that were sent when the backlog was done.
    """

    done: list[float]
    ready: float
    opened: float | None
    harmed: dict[str, int]
    quarantined: int
    paused: list[str]
    later: float


def deploy(broker: str, notes: str, version: str, each: int, takes: float) -> Round:
    """Run one, in a process of its own: the app is what the environment says."""
    bad = version.startswith("bad")
    env = {"GUARD_BROKER": broker, "GUARD_NOTES": notes, "GUARD_VERSION": version, "GUARD_TAKES": str(takes)}
    os.environ.update(env)
    import deploy_guard_app as shop

    from celery_poison import Quarantine
    from celery_poison.ledger.pauses import holding
    from celery_poison.plugin import plugin_of

    numbers = [*range(FINE), *((shop.ALWAYS, shop.THIRD) if bad else ())]
    _send(shop, numbers, each)
    quarantine, store = Quarantine(shop.app), redis.Redis.from_url(notes)
    ledger, fine = (
        redis.Redis.from_url(broker),
        {f"{{poison}}:first_runs:{version} {shop.NAMES[n]}" for n in range(FINE)},
    )
    opened, opened_ledger = None, plugin_of(shop.app).open_ledger()
    with ExitStack() as stack:
        here = Path(__file__).parent
        workers = [
            stack.enter_context(
                Worker("deploy_guard_app", name=f"w{n}", concurrency=SLOTS, env=env, cwd=here)
            )
            for n in range(WORKERS)
        ]
        for worker in workers:
            worker.wait_ready(PATIENCE)
        ready, until = time.time(), time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if version and opened is None and all(_is_open(raw) for raw in ledger.mget(sorted(fine))):
                opened = time.time()
            ended = sum(int(row.split()[0]) < FINE for row in store.lrange("done", 0, -1))
            paused = [pause.name for pause in holding(opened_ledger)]
            if ended >= FINE * each and (not bad or len(paused) == 2):
                break
            time.sleep(0.05)
        backlog, began = store.llen("done"), time.monotonic()
        if not bad:
            _send(shop, numbers, each)
        while not bad and time.monotonic() < until and store.llen("done") < 2 * backlog:
            time.sleep(0.01)
        later = time.monotonic() - began
        rows = [row.split() for row in store.lrange("done", 0, backlog - 1)]
        entries = list(quarantine.queries.journal(count=100_000))
    harmed: dict[str, set[str]] = {}
    for entry in entries:
        if entry["event"] == "crashed":
            harmed.setdefault(entry["task"], set()).add(entry["mid"])
    times = sorted(float(at) for number, at in rows if int(number) < FINE)
    counts = {task: len(mids) for task, mids in harmed.items()}
    return Round(times, ready, opened, counts, len(quarantine.list()), paused, later)


def _send(shop: Any, numbers: Iterable[int], each: int) -> None:
    with shop.app.connection_for_write() as connection:
        for _ in range(each):
            for number in numbers:
                shop.app.tasks[shop.NAMES[number]].apply_async(connection=connection)


def _is_open(raw: bytes | str | None) -> bool:
    return raw is not None and json.loads(raw)[-1] != ""


class Ratios(NamedTuple):
    """Throughput with the guard over that without.

    Attributes:
        within: messages done until the last fine task ran as ever, over those done in as long without.
        after: of messages that were sent when the backlog was done.
        first_s: seconds until the last fine task ran as ever.
    """

    within: float
    after: float
    first_s: float


def ratios(with_guard: Round, without: Round) -> Ratios:
    assert with_guard.opened is not None
    within = with_guard.opened - with_guard.ready
    guarded = sum(at <= with_guard.opened for at in with_guard.done)
    plain = sum(at <= without.ready + within for at in without.done)
    return Ratios(guarded / max(1, plain), without.later / with_guard.later, within)


def of_bad(rounds: list[Round], each: int) -> dict[str, int]:
    return {
        "deploys": len(rounds),
        "both_paused": sum(sorted(one.paused) == ["guard.t38", "guard.t39"] for one in rounds),
        "harmed_most": max((n for one in rounds for n in one.harmed.values()), default=0),
        "quarantined": sum(one.quarantined for one in rounds),
        "fine_all_done": sum(len(one.done) >= FINE * each for one in rounds),
    }


def of_good(rounds: list[Round], each: int) -> dict[str, int]:
    return {
        "deploys": len(rounds),
        "paused": sum(bool(one.paused) for one in rounds),
        "all_done": sum(len(one.done) >= FINE * each for one in rounds),
    }


def of_pairs(pairs: list[Ratios]) -> dict[str, Any]:
    medians = {
        name: statistics.median(values)
        for name, values in zip(Ratios._fields, zip(*pairs, strict=True), strict=False)
    }
    rounded = {name: round(value, 3) for name, value in medians.items()}
    return {"pairs": len(pairs), **rounded, "each": [[round(one, 3) for one in pair] for pair in pairs]}


def _processes(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1)


def is_reached(found: dict[str, Any]) -> bool:
    """Whether what was run keeps what is promised."""
    bad, good, speed = found["bad"], found["good"], found["throughput"]
    kept = bad["both_paused"] == bad["fine_all_done"] == bad["deploys"] and bad["harmed_most"] <= MOST_HARMED
    kept = kept and not good["paused"] and good["all_done"] == good["deploys"]
    return kept and (
        not speed["pairs"] or (speed["within"] >= LEAST_WITHIN and speed["after"] >= LEAST_AFTER)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deploys", type=int, default=30, help="bad ones, and as many good ones")
    parser.add_argument("--each", type=int, default=10, help="messages of each task")
    parser.add_argument("--pairs", type=int, default=5, help="with and without, for throughput")
    parser.add_argument("--pair-each", type=int, default=60, help="messages of each task in these")
    parser.add_argument("--takes", type=float, default=0.02, help="seconds of a run in these")
    parser.add_argument("--jobs", type=int, default=2, help="deploys at a time")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    with RedisServer(options={"databases": 1000}) as server:
        numbers = iter(range(1, 400))

        def begun(pool: ProcessPoolExecutor, version: str, each: int, takes: float = 0.02) -> Future[Round]:
            database = 2 * next(numbers)
            return pool.submit(deploy, server.url(database), server.url(database + 1), version, each, takes)

        with _processes(args.jobs) as pool:
            bad = [begun(pool, f"bad-{n}", args.each) for n in range(args.deploys)]
            good = [begun(pool, f"good-{n}", args.each) for n in range(args.deploys)]
            for n, each in enumerate(as_completed([*bad, *good]), 1):
                told = (
                    f"{n} of {2 * args.deploys}: paused {each.result().paused}, died {each.result().harmed}"
                )
                print(told, file=sys.stderr, flush=True)
            found["bad"] = of_bad([each.result() for each in bad], args.each)
            found["good"] = of_good([each.result() for each in good], args.each)
        with _processes(1) as pool:
            pairs = []
            for n in range(args.pairs):
                both = {}
                for version in ("", f"good-pair-{n}") if n % 2 else (f"good-pair-{n}", ""):
                    both[bool(version)] = begun(pool, version, args.pair_each, args.takes).result()
                pairs.append(ratios(both[True], both[False]))
                print(f"within, after: {pairs[-1]}", file=sys.stderr, flush=True)
        found["throughput"] = of_pairs(pairs)
    print(json.dumps(found, indent=2))
    return 0 if is_reached(found) else 1


if __name__ == "__main__":
    sys.exit(main())
