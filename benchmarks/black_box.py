"""Whom the black box names when whole containers die of memory; what it costs; and lines of native crashes.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import cputime

from celery_poison.causes import Evidence
from celery_poison.quarantine.evidence import sentence_of
from celery_poison.testing import RedisServer, Worker, wait_until
from tests.apps.confined import Confined, killed_as_a_whole, new_memory_group
from tests.apps.harness import ROOT
from tests.extensions import boxes
from tests.extensions.boxes import Boxes, watching

#: MiB that a container may use.
LIMIT = 400
#: MB a second by which culprits grow; 0: in one call that lets no other thread run.
SPEEDS = (20, 60, 90, 150, 300, 600)
INNOCENTS = (("waits",), ("computes",), ("churns",), ("holds", 20))
#: Seconds within which a container's end is on record.
PATIENCE = 90.0
#: What at least as many of a hundred must be, and the share of a processor at most.
LEAST_NAMED, LEAST_NOT_WRONG, MOST_CPU = 95, 99, 0.01
SETTINGS = {"poison_heartbeat_interval": 3.0, "poison_activation_interval": 10.0}


class Kill(NamedTuple):
    """One container's end: who grew, and who was named.

    Attributes:
        speed: of the culprit; None: it was killed by hand, and nobody grew.
    """

    pool: str
    speed: int | None
    innocents: tuple[str, ...]
    named: str
    line: str
    is_likely: bool
    said: str

    @property
    def verdict(self) -> str:
        expected = "box.grows" if self.speed is not None else ""
        named = self.named if self.is_likely else ""
        return "right" if named == expected else "wrong" if named else "unnamed"


class Lane:
    """Containers one after the other, on a Redis database of their own."""

    def __init__(self, server: RedisServer, directory: Path, number: int) -> None:
        self.number, self.turn = number, 0
        urls = {name: server.url(3 * number + n) for n, name in enumerate(("broker", "backend", "marks"))}
        self.fleet = Boxes(
            **{f"{name}_url": url for name, url in urls.items()}, directory=directory, settings=SETTINGS
        )

    def kill(self, pool: str, speed: int | None, luck: random.Random) -> Kill:
        self.turn += 1
        is_joined = luck.random() < 0.5
        name = f"lane{self.number}-{self.turn}"
        innocents = luck.choices(INNOCENTS, k=3)
        for task, *args in innocents:
            self.fleet.start(task, *args, queue=name)
        with new_memory_group(LIMIT << 20, f"-{self.number}") as group, killed_as_a_whole(group):
            made = self._worker(Confined, name, pool)
            made.group = group
            with made:
                self._await(lambda: self._running(name) == 3, "the innocents run", made)
                time.sleep(luck.uniform(0.5, 2.0))
                if is_joined:  # by an innocent that takes memory at the same time
                    self.fleet.start("holds", 40, queue=name)
                if speed is None:
                    time.sleep(luck.uniform(0.3, 2.0))
                    made.kill_group()
                else:
                    self.fleet.start("grows", speed, 4000, queue=name)
                self._await(lambda: self._lost(name), "its end is on record", made)
        evidence = Evidence.decode(self._lost(name)[0]["evidence"])
        names = (*(task for task, *_ in innocents), *(["holds at once"] if is_joined else []))
        likely = bool(evidence.oom_likely)
        return Kill(pool, speed, names, evidence.grew_task, evidence.grew_at, likely, sentence_of(evidence))

    def _worker(self, kind: type[Worker], name: str, pool: str) -> Any:
        return kind(
            "tests.extensions.boxes",
            name=name,
            pool=pool,
            concurrency=5,
            queues=[name],
            env=self.fleet.environ(),
            cwd=ROOT,
            log_path=self.fleet.directory / f"{name}.log",
        )

    def _await(self, condition: Any, what: str, worker: Worker) -> None:
        wait_until(condition, PATIENCE, what=lambda: f"{what}\n{worker.log_text()[-3000:]}")

    def _running(self, name: str) -> int:
        rows = self.fleet.quarantine.queries.running()
        return sum(start.worker.startswith(f"{name}@") and start.pid > 0 for _, start, _ in rows)

    def _lost(self, name: str) -> list[dict[str, str]]:
        return [each for each in self.fleet.events("worker_lost") if each["worker"].startswith(f"{name}@")]


@contextmanager
def lanes(count: int) -> Iterator[list[Lane]]:
    with RedisServer() as server, tempfile.TemporaryDirectory() as directory:
        made = []
        for number in range(count):
            path = Path(directory, str(number))
            path.mkdir()
            made.append(Lane(server, path, number))
        try:
            yield made
        finally:
            for lane in made:
                for pid in lane.fleet.survivors():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                lane.fleet.close()


def kills(args: argparse.Namespace) -> list[Kill]:
    """Let containers die, in lanes side by side; every sixth is killed by hand instead."""
    luck = random.Random(args.seed)
    controls = args.kills // 5
    plan = [(args.pools[n % len(args.pools)], luck.choice(SPEEDS)) for n in range(args.kills)]
    plan += [(args.pools[n % len(args.pools)], None) for n in range(controls)]  # type: ignore[misc]
    luck.shuffle(plan)
    found: list[Kill] = []
    with lanes(args.lanes) as made:

        def work(lane: Lane) -> None:
            mine = random.Random(args.seed * 100 + lane.number)
            with watching(lane.fleet):
                while plan:
                    pool, speed = plan.pop()
                    try:
                        kill = lane.kill(pool, speed, mine)
                    except Exception as error:
                        print(f"{pool} {speed}: no result: {error}", file=sys.stderr)
                        continue
                    found.append(kill)
                    print(f"{len(found)}: {kill.verdict}: {kill}", file=sys.stderr, flush=True)

        threads = [threading.Thread(target=work, args=(lane,)) for lane in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def crashes(count: int) -> tuple[int, int]:
    """Return how many native crashes had the right line, of how many; half of them grew before."""
    source = Path(boxes.__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if text.endswith("# here"))
    with lanes(1) as (lane,):
        ids = {lane.fleet.start("crashes", 60 * (n % 2)).id for n in range(count)}
        worker = lane._worker(Worker, "crashes", "prefork")
        worker.queues = ["celery"]
        with worker:

            def have_crashed() -> bool:
                return {each["id"] for each in lane.fleet.events("crashed")} == ids

            lane._await(have_crashed, "all have crashed", worker)
            ends = lane.fleet.events("crashed")
    right = sum(f"boxes.py:{line})" in Evidence.decode(each["evidence"]).source for each in ends)
    return right, len(ends)


def cost(pool: str, seconds: float, what: str) -> dict[str, float]:
    """Return which share of a processor a worker's main process uses, with its black box and without."""
    found = {}
    for label in ("with", "without"):
        with lanes(1) as (lane,):
            env = {"NO_BLACK_BOX": "1"} if label == "without" else {}
            for _ in range(7):
                lane.fleet.start("waits", queue="cost")
            lane.fleet.start(*(("grows", 10, 4000) if what == "grows" else ("waits",)), queue="cost")
            worker = lane._worker(Worker, "cost", pool)
            worker.concurrency, worker.env, worker.queues = 8, worker.env | env, ["cost"]
            with worker:
                lane._await(lambda: lane._running("cost") == 8, "all run", worker)
                time.sleep(3)
                pids = [worker.main_pid] if what != "grows" else [worker.main_pid, *worker.child_pids()]
                before, began = sum(map(cputime.of_process, pids)), time.monotonic()
                time.sleep(seconds)
                used = sum(map(cputime.of_process, pids)) - before
                found[label] = used / (time.monotonic() - began)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=100, help="containers that die of memory; a fifth more by hand"
    )
    parser.add_argument("--pools", nargs="+", default=["prefork", "threads"])
    parser.add_argument("--lanes", type=int, default=2, help="containers side by side")
    parser.add_argument("--crashes", type=int, default=20, help="native crashes")
    parser.add_argument(
        "--cost", type=float, default=30.0, help="seconds of each measurement of processor time; 0: none"
    )
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--json", help="a file for all figures")
    args = parser.parse_args()
    report: dict[str, Any] = {}
    if args.kills:
        found = kills(args)
        grew = [each for each in found if each.speed is not None]
        verdicts = {pool: Counter(k.verdict for k in grew if k.pool == pool) for pool in args.pools}
        by_hand = Counter(k.verdict for k in found if k.speed is None)
        lines = sum("grows (" in each.line for each in grew)
        report |= {
            "kills": len(grew),
            "named": {pool: dict(counted) for pool, counted in verdicts.items()},
            "by_hand": dict(by_hand),
            "oom_likely": sum(each.is_likely for each in grew),
            "likely_by_hand": sum(each.is_likely for each in found if each.speed is None),
            "with_line": lines,
            "not_right": [each._asdict() for each in found if each.verdict != "right"],
        }
        print(json.dumps({**report, "not_right": len(report["not_right"])}, indent=1), flush=True)
    if args.crashes:
        report["crashes_with_right_line"] = crashes(args.crashes)
        print("native crashes with the right line:", report["crashes_with_right_line"], flush=True)
    if args.cost:
        report["cpu"] = {
            f"{pool} {what}": cost(pool, args.cost, what)
            for pool in args.pools
            for what in ("waits", "grows")
        }
        print("share of a processor:", json.dumps(report["cpu"], indent=1))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1))
    return 0 if _holds(report) else 1


def _holds(report: dict[str, Any]) -> bool:
    """Whether every target is met that was measured."""
    good = True
    if "named" in report:
        counted = sum((Counter(each) for each in report["named"].values()), Counter())
        counted += Counter()
        wrong = counted["wrong"] + report["by_hand"].get("wrong", 0)
        all_of_them = sum(counted.values()) + sum(report["by_hand"].values())
        good = good and 100 * counted["right"] >= LEAST_NAMED * report["kills"]
        good = good and 100 * (all_of_them - wrong) >= LEAST_NOT_WRONG * all_of_them
    if "crashes_with_right_line" in report:
        right, of = report["crashes_with_right_line"]
        good = good and right == of
    for name, used in report.get("cpu", {}).items():
        good = good and ("grows" in name or used["with"] - used["without"] <= MOST_CPU)
    return good


if __name__ == "__main__":
    raise SystemExit(main())
