"""Whole workers are killed from outside, one after the other, while innocents run: none may be convicted.

Two workers under a supervisor, sixty tasks of a second, a worker killed every three seconds, six times: on
Redis and on RabbitMQ, classic and quorum queues. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from many_fleet import Fleet, Setup

from celery_poison.settings import Settings
from celery_poison.testing import Supervisor, wait_until
from celery_poison.testing.servers import WaitTimeout

SETUPS = {
    "redis": Setup(True, "redis"),
    "classic": Setup(True, "rabbitmq"),
    "quorum": Setup(True, "rabbitmq", "quorum"),
}


def play(setup: Setup, args: argparse.Namespace) -> dict[str, Any]:
    """Kill, in turn, and return what became of the messages."""
    names = {f"m{number}" for number in range(args.tasks)}
    with (
        Fleet(setup) as fleet,
        Supervisor(
            lambda name: fleet.worker(name, args.pool, args.concurrency), 2, give_up_after=1_000_000
        ) as supervisor,
    ):
        supervisor.wait_ready(120)
        # Monitors listen for so long before they believe in any death.
        time.sleep(Settings().activation_interval + 1.0)
        for name in sorted(names):
            fleet.send("waits", name, args.seconds)
        wait_until(lambda: fleet.names("start"), 60, what="the first one runs")
        fleet.strike()  # what has begun by now runs until its worker is killed, however slowly all was sent
        for number in range(args.kills):
            time.sleep(args.every)
            supervisor.workers[number % 2].kill_group()
            _await_deaths(supervisor, number + 1)
        with suppress(WaitTimeout):
            wait_until(lambda: fleet.names("end") | fleet.convicted() >= names, args.patience, interval=0.2)
        runs = [mark.name for mark in fleet.marks("start")]
        ends = [mark.name for mark in fleet.marks("end")]
        return {
            "setup": setup.name,
            "deaths": len(supervisor.deaths),
            "convicted": sorted(fleet.convicted()),
            "unfinished": sorted(names - set(ends) - fleet.convicted()),
            "again_after_its_last_mark": sorted({name for name in ends if ends.count(name) > 1}),
            "most_runs": max(runs.count(name) for name in names),
        }


def _await_deaths(supervisor: Supervisor, count: int) -> None:
    wait_until(lambda: len(supervisor.deaths) >= count, 60, what="its death is seen")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    wanted = [*SETUPS]
    parser.add_argument("--setups", nargs="+", choices=wanted, default=wanted, help="which (all)")
    parser.add_argument("--runs", type=int, default=10, help="of each (10)")
    parser.add_argument("--tasks", type=int, default=60, help="innocents (60)")
    parser.add_argument("--seconds", type=float, default=1.0, help="that each takes (1)")
    parser.add_argument("--kills", type=int, default=6, help="of whole workers, in turn (6)")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two (3)")
    parser.add_argument("--pool", default="prefork", help="of the workers (prefork)")
    parser.add_argument("--concurrency", type=int, default=6, help="of each worker (6)")
    parser.add_argument("--patience", type=float, default=180.0, metavar="S", help="for the last ones (180)")
    return parser.parse_args(argv)


def main() -> int:
    args = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    good = True
    try:
        for number in range(args.runs):
            for name in args.setups:
                found = play(SETUPS[name], args)
                print(json.dumps({"run": number + 1, **found}), flush=True)
                good = good and not (found["convicted"] or found["unfinished"])
    except KeyboardInterrupt:
        return 130
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
