"""How fast a large quarantine is read and released, and what it takes in Redis.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from kombu.utils.json import dumps

from celery_poison import Quarantine, guarded
from celery_poison.desk.finder import Finder, Found
from celery_poison.desk.read_model import ReadModel
from celery_poison.desk.search import By, Filter
from celery_poison.ledger import Ledger
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from celery_poison.states import State
from celery_poison.testing import RedisServer

#: Targets: milliseconds of 99 in 100 answers, and releases a second.
MOST_MS, LEAST_RELEASES = 50.0, 5000.0
PAGE = 50
TASKS, CAUSES, FINGERPRINTS = 50, ("signal:11", "signal:9", "oom", "exit:7", "time_limit"), 10_000
FILTERS = ("task=shop.task7", "cause=sigsegv fingerprint=0000002a*", "age<1h deaths>1")
#: What is looked for in each message, of which a few in a thousand match, and none.
WORDS = ("arguments=*4711*", "worker=nobody", "deaths>5", "nobody")
#: Copies messages as an older version would have left them, that is without their groups.
COPY = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local mid = string.format('00000000-0000-0000-0000-%012x', i)
  local like = string.format('00000000-0000-0000-0000-%012x', i % ARGV[4])
  local key = ARGV[1] .. mid
  redis.call('HSET', key, unpack(redis.call('HGETALL', ARGV[1] .. like)))
  redis.call('HSET', key, 'id', mid, 'mid', mid, 'arguments', i .. ", 'some…'", 'quarantined_at', now)
  redis.call('ZADD', KEYS[1], now, mid)
end
"""
#: Seconds for one question, and times that it is asked: at least, at most.
PATIENCE, FEWEST, MOST = 6.0, 3, 300


def make_app(server: RedisServer) -> Celery:
    """Return an app whose broker and ledger are in one database, with guarded tasks."""
    app = Celery("desk", broker=server.url(0), set_as_current=False)

    def task(order: int, path: str) -> None:
        """Nobody runs it here."""

    for number in range(TASKS):
        guarded(app.task(shared=False, name=f"shop.task{number}")(task))
    app.finalize()
    return app


def fill(ledger: Ledger, count: int) -> None:
    """Put messages into quarantine: the first and the last as a worker does, the rest copied inside Redis."""
    ends = min(count, FINGERPRINTS)
    for number in range(ends):
        keep(ledger, number)
    copy, keys = ledger.client.register_script(COPY), ledger.keys
    for first in range(ends, count - ends, 1000):
        last = min(first + 1000, count - ends) - 1
        copy([keys.quarantine], [keys.message(""), first, last, FINGERPRINTS])
    for number in range(max(ends, count - ends), count):
        keep(ledger, number)


def keep(ledger: Ledger, number: int) -> None:
    """Put one message into quarantine as a worker does: it dies twice and is kept."""
    id, task = str(uuid.UUID(int=number)), f"shop.task{number % TASKS}"
    cause, fingerprint = CAUSES[number // TASKS % len(CAUSES)], f"{number % FINGERPRINTS:08x}" * 4
    body = json.dumps([[number, "some/file/of/a/customer.png"], {}, {"callbacks": None}]).encode()
    for death in (1, 2):
        token = f"b00t.{2 * number + death}"
        start = Start("R", token, "w1@desk/b00t", 7, 1, 1, 0, id, task, "celery", 2, 5, len(body), 1)
        ledger.messages.crash(id, start, cause=cause, shared=False)
    fields = {**_stored(id, task, body), "fingerprint": fingerprint, "arguments": f"{number}, 'some…'"}
    ledger.quarantine.store(id, start, cause=cause, reason="death 2 of this message", fields=fields)


def _stored(id: str, task: str, body: bytes) -> dict[str, str | bytes | int]:
    headers: dict[str, Any] = {"lang": "py", "task": task, "id": id, "root_id": id, "parent_id": None}
    headers |= {"retries": 0, "eta": None, "expires": None, "group": None, "timelimit": [None, None]}
    headers["poison_mid"] = id
    address = {"exchange": "", "routing_key": "celery"}
    properties = {"correlation_id": id, "reply_to": str(uuid.uuid4()), "delivery_mode": 2, "priority": 0}
    properties |= {"delivery_info": address, "body_encoding": "base64", "delivery_tag": str(uuid.uuid4())}
    return {
        "body": body,
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": dumps(headers),
        "properties": dumps(properties),
    }


def asked(question: Callable[[], object], most_ms: float | None = MOST_MS) -> dict[str, Any]:
    """Ask again and again, for a while; return how long the answers took, in milliseconds.

    Args:
        most_ms: the target; None: it is no page, and nobody waits for it at a screen.
    """
    took: list[float] = []
    over = time.perf_counter() + PATIENCE
    while len(took) < FEWEST or (len(took) < MOST and time.perf_counter() < over):
        begun = time.perf_counter()
        question()
        took.append((time.perf_counter() - begun) * 1000)
    took.sort()
    p50, p99 = (took[min(len(took) - 1, int(len(took) * part))] for part in (0.5, 0.99))
    missed = most_ms is not None and p99 >= most_ms
    return {"p50_ms": p50, "p99_ms": p99, "times": len(took), "most_ms": most_ms, "missed": missed}


def by_command(quarantine: Quarantine) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure what a command reads, which looks once and keeps nothing."""
    yield "command: count", asked(quarantine.queries.totals)
    yield "command: newest page", asked(lambda: quarantine.list(limit=PAGE))
    for text in FILTERS:
        where = Filter.parse(text)
        yield f"command: page of {text!r}", asked(lambda: quarantine.list(where=where, limit=PAGE))  # noqa: B023
    words = Filter.search(WORDS[0])
    walk = asked(lambda: quarantine.list(where=words, limit=PAGE), None)
    yield f"command: page of {WORDS[0]!r}, a walk", walk
    yield "command: groups by cause", asked(lambda: quarantine.groups(by=By.CAUSE))
    largest = partial(quarantine.finder.groups, limit=PAGE)
    yield "command: the largest groups by fingerprint", asked(largest)
    yield "command: all groups by fingerprint, for programs", asked(quarantine.groups, None)


def by_flower(model: ReadModel, finder: Finder) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure what Flower does: a look at the whole, and pages."""
    dice = random.Random(1)

    def page(text: str = "", offset: int = 0) -> Found:
        where = Filter.search(text) if text else Filter()
        return finder.page(where, State.NDLV, rows=PAGE, offset=offset)

    total = model.look().overview.quarantined  # type: ignore[union-attr]
    yield "Flower: a look at the whole", asked(model.look)
    yield "Flower: any page", asked(lambda: page(offset=dice.randrange(total)))
    of_task = page(FILTERS[0]).total or 1
    yield f"Flower: any page of {FILTERS[0]!r}", asked(lambda: page(FILTERS[0], dice.randrange(of_task)))
    for text in FILTERS + WORDS:
        yield f"Flower: page of {text!r}", asked(lambda: page(text))  # noqa: B023


def released_per_second(quarantine: Quarantine, count: int) -> float:
    """Release some, and return how many of them a second."""
    mids = [mid for mid, _ in islice(quarantine.queries.kept_ids(State.NDLV), count)]
    begun = time.perf_counter()
    outcomes = quarantine.release(mids, actor="desk")
    seconds = time.perf_counter() - begun
    refused = [outcome.error for outcome in outcomes if not outcome.done]
    if refused:
        raise RuntimeError(f"{len(refused)} refused: {refused[0]}")
    return len(mids) / seconds


def weigh(client: redis.Redis, journal: str) -> tuple[int, int]:
    """Return the bytes of the server without the journal, and those of the journal."""
    of_journal = int(client.memory_usage(journal, samples=0) or 0)
    return int(client.info("memory")["used_memory"]) - of_journal, of_journal


def weigh_groups(ledger: Ledger) -> int:
    """Return the bytes of the index of groups."""
    keys = ledger.client.scan_iter(f"{ledger.keys.groups}:*", count=1000)
    return sum(int(ledger.client.memory_usage(key, samples=0) or 0) for key in keys)


def measure(count: int, releases: int) -> dict[str, Any]:
    with RedisServer() as server:
        app = make_app(server)
        plugin, quarantine = plugin_of(app), Quarantine(app)
        ledger = plugin.open_ledger()
        before, _ = weigh(ledger.client, ledger.keys.journal)
        begun = time.perf_counter()
        fill(ledger, count)
        filled, begun = time.perf_counter() - begun, time.perf_counter()
        quarantine.finder.by_queue()
        regrouped = time.perf_counter() - begun
        after, of_journal = weigh(ledger.client, ledger.keys.journal)
        answers = dict(by_command(quarantine))
        answers |= dict(by_flower(ReadModel(app), quarantine.finder))
        return {
            "commit": _commit(),
            "machine": _machine(),
            "entries": count,
            "fill_seconds": filled,
            "regroup_seconds": regrouped,
            "groups_bytes_per_entry": weigh_groups(ledger) / count,
            "bytes_per_entry": (after - before) / count,
            "journal_bytes": of_journal,
            "answers": answers,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "releases_per_second": released_per_second(quarantine, min(releases, count)),
        }


def _commit() -> str:
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    python = f"{platform.machine()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {python}, load {load:.1f} at the end"


def show(found: dict[str, Any]) -> None:
    print(f"commit {found['commit']}; {found['machine']}")
    print(f"{found['entries']:,} messages in quarantine, put there in {found['fill_seconds']:.0f} s")
    print(
        f"{found['bytes_per_entry']:,.0f} bytes of Redis each; the journal {found['journal_bytes']:,} in all"
    )
    print(f"{found['groups_bytes_per_entry']:,.0f} of them for the groups", end="")
    print(f"; what an older version left was put into its groups in {found['regroup_seconds']:.1f} s")
    print(f"most memory of this process: {found['peak_mb']:,.0f} MB")
    for name, took in found["answers"].items():
        missed = f"  over {took['most_ms']:.0f}" if took["missed"] else ""
        figures = f"p50 {took['p50_ms']:9.2f} ms  p99 {took['p99_ms']:9.2f} ms  n={took['times']}"
        print(f"  {name:<62}{figures}{missed}")
    print(f"{found['releases_per_second']:,.0f} releases a second, target {LEAST_RELEASES:,.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--releases", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    found = measure(options.entries, options.releases)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    answered = not any(took["missed"] for took in found["answers"].values())
    return 0 if answered and found["releases_per_second"] >= LEAST_RELEASES else 1


if __name__ == "__main__":
    sys.exit(main())
