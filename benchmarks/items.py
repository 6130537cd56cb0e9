"""At which row tasks die, by what their evidence says and by what is true; and what following a loop costs.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from celery_poison.causes import Evidence
from celery_poison.extensions.items.loops import Loop
from celery_poison.extensions.items.marks import Page
from celery_poison.testing import RedisServer, wait_until
from tests.extensions.loops import SHAPES, Walks, verdict

#: A thread from before, to which the loop hands copies, shows by the stack of a native crash alone.
BY_STACK = ("earlier",)
PATIENCE, BATCH, ROWS = 300.0, 50, 10_000
MOST_NS = 1000.0


class Sent(NamedTuple):
    shape: str
    how: str
    rows: int
    deadly: int


def drawn(luck: random.Random) -> Sent:
    shape = luck.choice([*SHAPES])
    rows = luck.randint(12, 400)
    how = "SIGSEGV" if shape in BY_STACK else luck.choice(("SIGKILL", "SIGSEGV"))
    # Rows that are handled later are handled within the loop: it waits for them some rows on.
    return Sent(shape, how, rows, luck.randint(1, rows - 10))


def deaths(count: int, concurrency: int, luck: random.Random) -> list[tuple[Sent, str]]:
    """Let so many tasks die in a worker of prefork; return what is said of each."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer())
        urls = {name: server.url(n) for n, name in enumerate(("broker", "backend", "marks"))}
        walks = Walks(
            **{f"{name}_url": url for name, url in urls.items()},
            directory=directory,
            settings={"poison_max_crashes": 1},
        )
        stack.callback(walks.close)
        sent: dict[str, Sent] = {}
        stack.enter_context(walks.worker(concurrency=concurrency))
        while len(sent) < count:
            for _ in range(min(BATCH, count - len(sent))):
                each = drawn(luck)
                sent[walks.start("walks", each.shape, each.rows, each.deadly, each.how).id] = each
            wait_until(lambda: len(walks.events("crashed")) >= len(sent), PATIENCE, what="all have died")
            sys.stderr.write(f"\r{len(sent)} of {count}")
        sys.stderr.write("\n")
        found = {entry["id"]: Evidence.decode(entry["evidence"]) for entry in walks.events("crashed")}
    return [(each, verdict(each.shape, each.rows, each.deadly, found[id])) for id, each in sent.items()]


class _Row:
    def __init__(self, id: int) -> None:
        self.id = id


def costs(pairs: int) -> list[float]:
    """Return nanoseconds that following a row with a key costs, by pairs of the same loop."""
    rows = [_Row(number) for number in range(ROWS)]
    found = []
    with tempfile.TemporaryDirectory() as directory:
        page = Page(directory)

        def follow(number: int) -> Any:
            return Loop(page, f"token{number}", rows, lambda row: row.id, sys.stderr.write)

        for number in range(pairs):
            took = {}
            for name, each in [("plain", rows), ("followed", follow(number))][:: 1 if number % 2 else -1]:
                began = time.thread_time()
                for _row in each:
                    pass
                took[name] = time.thread_time() - began
            found.append((took["followed"] - took["plain"]) / ROWS * 1e9)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    told = deaths(options.deaths, options.concurrency, random.Random(options.seed)) if options.deaths else []
    verdicts = Counter(judged for _, judged in told)
    shapes = Counter((each.shape, each.how, judged) for each, judged in told)
    for (shape, how, judged), number in sorted(shapes.items()):
        sys.stdout.write(f"{shape:14} {how:8} {judged:28} {number:5}\n")
    sys.stdout.write(f"{len(told)} deaths: {dict(verdicts)}\n")
    ns = costs(options.pairs)
    median = statistics.median(ns)
    sys.stdout.write(
        f"{median:.0f} ns a row (median of {len(ns)} pairs; best {min(ns):.0f}, worst {max(ns):.0f})\n"
    )
    return int(bool(verdicts["wrong"]) or median > MOST_NS)


if __name__ == "__main__":
    sys.exit(main())
