"""What trials cost healthy work: its throughput while 50 suspects are tried, and right before and after.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from statistics import mean
from typing import Any, NamedTuple

import figures
import redis
import rounds
import workers

from celery_poison.ledger import Keys, Ledger
from celery_poison.model import Start
from celery_poison.testing import RedisServer

#: Healthy throughput while suspects are tried, over that without.
LEAST_RATIO = 0.8
#: Busy processors below which the machine counts as quiet.
QUIET = 0.2
LOOK = 0.02
#: Seconds after which the worker counts as stuck.
STUCK = 300.0


class Round(NamedTuple):
    """What came of one round; rates are healthy messages per second.

    Attributes:
        first: seconds from the suspects' arrival until the first was cleared; the cell is opened meanwhile,
        all: until all were.
        slowest: the longest wait between two that were cleared.
    """

    before: float
    with_trials: float
    after: float
    first: float
    all: float
    slowest: float

    @property
    def ratio(self) -> float:
        """Nan where there is no healthy work."""
        usual = mean((self.before, self.after))
        return self.with_trials / usual if usual else math.nan


class Court:
    """A worker under load, and its suspects."""

    def __init__(self, client: redis.Redis, ledger: Ledger) -> None:
        self._client = client
        self._ledger = ledger

    def accuse(self, messages: list[bytes]) -> None:
        """Flag messages as if their worker had died with them, and put them at the head of the queue."""
        copies = []
        for raw in messages:
            message = json.loads(raw)
            headers = message["headers"]
            id, task, mid = headers["id"], headers["task"], headers["poison_mid"]
            start = Start("R", f"dead.{id}", "w0@bench/dead", 1, 1, 1, 0, id, task, "celery", 2, 5, 10, 1)
            self._ledger.messages.crash(mid, start, cause="worker_lost", shared=True)
            message["properties"]["delivery_info"]["redelivered"] = True
            copies.append(json.dumps(message).encode())
        self._client.rpush(workers.QUEUE, *copies)

    @property
    def suspects(self) -> int:
        return int(self._ledger.client.zcard(self._ledger.keys.candidates))

    @property
    def left(self) -> int:
        """Healthy messages that are not done."""
        everything = int(self._client.llen(workers.QUEUE)) + int(self._client.hlen("unacked"))
        return everything - self.suspects

    def rate(self, seconds: float) -> float:
        """Return the healthy throughput of the next seconds."""
        began, left = time.monotonic(), self.left
        time.sleep(seconds)
        return (left - self.left) / (time.monotonic() - began)

    def try_all(self) -> tuple[float, list[float]]:
        """Wait until nobody is suspected; return the healthy throughput, and when each was cleared."""
        began, left, number, cleared = time.monotonic(), self.left, self.suspects, list[float]()
        while len(cleared) < number:
            time.sleep(LOOK)
            now = time.monotonic() - began
            cleared += [now] * (number - len(cleared) - self.suspects)
            if now > STUCK:
                raise RuntimeError(f"{len(cleared)} of {number} suspects were cleared")
        return (left - self.left) / (time.monotonic() - began), cleared


def run(args: argparse.Namespace) -> Round:
    if args.patience and not rounds.machine_is_quiet(QUIET, args.patience):
        print("the machine does not become quiet", file=sys.stderr)
    healthy = workers.published(args.task, args.tasks, guarded=True)
    suspects = workers.published(args.suspect, args.suspects - args.poisons, guarded=True)
    half = len(suspects) // 2
    suspects[half:half] = workers.published("die", args.poisons, guarded=True)
    with RedisServer() as server, server.client(decode_responses=False) as client:
        ledger = Ledger(server.client(1, decode_responses=False), Keys())
        court = Court(client, ledger)
        env = workers.environment(server, guarded=True)
        with workers.worker(env, pool=args.pool, concurrency=args.concurrency) as worker:
            if healthy:
                workers.stage(client, healthy)
                workers.release(client)
            time.sleep(2)  # the first second of a worker is not its usual one
            before = court.rate(args.seconds)
            court.accuse(suspects)
            with_trials, cleared = court.try_all()
            after = court.rate(args.seconds)
            if healthy and not court.left:
                raise RuntimeError("there was too little healthy work: give more --tasks")
            client.delete(workers.QUEUE)
            if "ERROR" in worker.log_text() and not args.poisons:  # whose convictions are told as such
                raise RuntimeError(worker.log_text())
    pauses = [later - earlier for earlier, later in zip([0.0, *cleared], cleared, strict=False)]
    return Round(before, with_trials, after, cleared[0], cleared[-1], max(pauses))


def summary(args: argparse.Namespace, done: list[Round]) -> dict[str, Any]:
    return {
        "processors": os.cpu_count(),
        "load_before": args.load,
        "task": args.task,
        "suspect": args.suspect,
        "suspects": args.suspects,
        "poisons": args.poisons,
        "tasks": args.tasks,
        "pool": args.pool,
        "concurrency": args.concurrency,
        "rounds": [{**one._asdict(), "ratio": one.ratio} for one in done],
        "ratio": figures.estimate([one.ratio for one in done])._asdict(),
        "trials_per_second": figures.estimate([args.suspects / one.all for one in done])._asdict(),
        "ms_for_each_after_the_first": figures.estimate(
            [1000 * (one.all - one.first) / max(1, args.suspects - 1) for one in done]
        )._asdict(),
        "all_cleared": figures.estimate([one.all for one in done])._asdict(),
    }


def show(told: dict[str, Any]) -> None:
    print(
        f"{told['suspects']} suspects ({told['suspect']}), {told['poisons']} of them poisons, beside healthy"
        f" work ({told['task'] if told['tasks'] else 'none'}), {told['pool']} -c {told['concurrency']}"
    )
    for one in told["rounds"]:
        print(
            f"  healthy tasks/s: before {one['before']:.0f}, beside trials {one['with_trials']:.0f},"
            f" after {one['after']:.0f}: ratio {one['ratio']:.3f};"
            f" first cleared {one['first']:.2f} s, all {one['all']:.2f} s"
        )
    ratio = told["ratio"]
    print(f"  ratio, median {ratio['median']:.3f}, least {ratio['least']:.3f}; target {LEAST_RATIO}")
    print(f"  trials per second, median {told['trials_per_second']['median']:.1f}")
    print(f"  ms for each after the first, median {told['ms_for_each_after_the_first']['median']:.1f}")
    print(f"  seconds until all are cleared, median {told['all_cleared']['median']:.2f}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", default="wait 0.02", help="of load_app.py: the healthy work (wait 0.02)")
    parser.add_argument(
        "--tasks", type=int, default=4000, help="healthy messages; more than can be done, or 0 (4000)"
    )
    parser.add_argument("--suspect", default="wait 0.1", help="of load_app.py, with its arguments (wait 0.1)")
    parser.add_argument("--suspects", type=int, default=50)
    parser.add_argument("--poisons", type=int, default=0, help="of the suspects (0)")
    parser.add_argument("--pool", default="prefork")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured before, and after, the trials")
    parser.add_argument(
        "--patience", type=float, default=0, metavar="S", help="longest wait for a quiet machine (0)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    args.load = os.getloadavg()[0]
    return args


def main() -> int:
    args = parse()
    told = summary(args, [run(args) for _ in range(args.rounds)])
    if args.json:
        print(json.dumps(told, indent=2))
    else:
        show(told)
    return 1 if told["ratio"]["median"] < LEAST_RATIO else 0


if __name__ == "__main__":
    sys.exit(main())
