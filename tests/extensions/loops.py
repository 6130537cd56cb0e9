"""The app of a fleet whose tasks go through rows, in every way that a body can be left in, and die at one."""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from celery import Celery

from celery_poison import guarded
from celery_poison.causes import Evidence
from celery_poison.extensions.items.evidence import LoopEvidence
from tests.apps.factory import DEFAULTS
from tests.apps.harness import Fleet


class Row(NamedTuple):
    id: int
    deadly: str


Each = Callable[[Iterable[Row]], Iterator[Row]]
EARLIER: list[ThreadPoolExecutor] = []


def handle(row: Row) -> int:
    if row.deadly == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if row.deadly == "SIGSEGV":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(0)
    if row.deadly == "raises":
        raise MemoryError(row.id)
    if row.deadly == "hangs":
        time.sleep(600)
    return row.id


def handle_later(row: Row) -> int:
    time.sleep(0.01)
    return handle(row)


def straight(each: Each, rows: list[Row]) -> None:
    for row in each(rows):
        handle(row)


def inner(each: Each, rows: list[Row]) -> None:
    """Within each other, and with a raise that is caught: the outer one counts."""
    for row in each(rows):
        for other in each(rows[:3]):
            try:
                int(other.deadly)
            except ValueError:
                continue
        handle(row)


def unpacked(each: Each, rows: list[Row]) -> None:
    [handle(Row(id, deadly)) for id, deadly in each(iter(rows))]


def broken_off(each: Each, rows: list[Row]) -> None:
    for row in each(rows):
        if row.deadly:
            break
    time.sleep(0)
    handle(row)


def gone_through(each: Each, rows: list[Row]) -> None:
    for _row in each(rows):
        pass
    for row in rows:
        handle(row)


def fetched(each: Each, rows: list[Row]) -> None:
    """It dies in what brings the rows."""

    def fetch() -> Iterator[Row]:
        for row in rows:
            handle(row)
            yield row

    for _row in each(fetch()):
        pass


def handed_on(each: Each, rows: list[Row]) -> None:
    def pairs() -> Iterator[tuple[int, Row]]:
        for row in each(rows):
            yield row.id, row

    for _number, row in [*pairs()]:
        handle(row)


def expression(each: Each, rows: list[Row]) -> None:
    for row in sorted((row for row in each(rows)), reverse=True):
        handle(row)


def batches(each: Each, rows: list[Row]) -> None:
    mine = iter(each(rows))
    while batch := [*itertools.islice(mine, 10)]:
        for row in batch:
            handle(row)


def collected(each: Each, rows: list[Row]) -> None:
    batch: list[Row] = []
    for row in each(rows):
        batch.append(row)
        if len(batch) == 10:
            _handle_all(batch)
            batch = []


def numbers(each: Callable[[Iterable[int]], Iterator[int]], rows: list[Row]) -> None:
    """A batch of numbers that all of a process share."""
    batch: list[int] = []
    for number in each(range(len(rows))):
        batch.append(number)
        if len(batch) == 10:
            _handle_all([rows[number] for number in batch])
            batch = []


def _handle_all(batch: list[Row]) -> None:
    for row in batch:
        handle(row)


def pooled(each: Each, rows: list[Row]) -> None:
    """Each row is handled some rows later, at the latest."""
    sent: list[Future[int]] = []
    with ThreadPoolExecutor(2) as pool:
        for row in each(rows):
            sent.append(pool.submit(handle_later, row))
            sent[max(0, len(sent) - 6)].result()


def mapped(each: Each, rows: list[Row]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(handle_later, each(rows)))


def threaded(each: Each, rows: list[Row]) -> None:
    begun: list[threading.Thread] = []
    for row in each(rows):
        begun.append(threading.Thread(target=handle_later, args=(Row(*row),)))
        begun[-1].start()
        begun[max(0, len(begun) - 6)].join()


def earlier(each: Each, rows: list[Row]) -> None:
    """Its thread was there before, and gets copies: only the stack of a crash shows that."""
    if not EARLIER:
        EARLIER.append(ThreadPoolExecutor(1))
        EARLIER[0].submit(int).result()
    sent: list[Future[int]] = []
    for row in each(rows):
        sent.append(EARLIER[0].submit(handle_later, Row(*row)))
        sent[max(0, len(sent) - 6)].result()


def in_a_thread(each: Each, rows: list[Row]) -> None:
    mine = each(rows)
    thread = threading.Thread(target=straight, args=(lambda rows: mine, rows))
    thread.start()
    thread.join()


def forked(each: Each, rows: list[Row]) -> None:
    """A child of the process has the loop, too, and goes on with it."""
    for row in each(rows):
        if row.deadly:
            pid = os.fork()
            if not pid:
                faulthandler.disable()
                _go_on(each, rows)
                os._exit(0)
            os.waitpid(pid, 0)
            handle(row)


def _go_on(each: Each, rows: list[Row]) -> None:
    for _row in each(rows):
        pass


SHAPES: Mapping[str, Callable[..., None]] = {
    each.__name__: each
    for each in (
        *(straight, inner, unpacked, broken_off, gone_through, fetched, handed_on, expression, batches),
        *(collected, numbers, pooled, mapped, threaded, earlier, in_a_thread, forked),
    )
}


def told_of(shape: str, count: int, deadly: int) -> tuple[str, int, str] | None:
    """Return what a loop of some shape says of a death at a row (where, number, key); None: unknown."""
    match shape:
        case "straight" | "inner" | "unpacked" | "forked":
            return "in", deadly, str(1000 + deadly)
        case "broken_off":
            return "left", deadly, str(1000 + deadly)
        case "gone_through":
            return "over", count, ""
        case "fetched":
            return "next", deadly - 1, ""
    return None


def verdict(shape: str, count: int, deadly: int, evidence: Evidence) -> str:
    """Judge what is said of a death: right, unknown, wrong, or unknown although it could be known."""
    loop = evidence.of(LoopEvidence)
    told = loop.item_is, loop.item, loop.item_key
    expected = told_of(shape, count, deadly)
    if told in (expected, ("in", deadly, str(1000 + deadly))):  # what may run later may run at once
        return "right"
    if told[0] in ("handed_on", "kept", "elsewhere", "torn") and told[1:] == (None, ""):
        return "unknown" if expected is None else "unknown, and could be known"
    return "wrong"


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = Celery("loops", set_as_current=current)
    app.conf.update(DEFAULTS)
    app.conf.update(json.loads(environ.get("POISON_SETTINGS", "{}")))
    app.conf.update(broker_url=environ["BROKER_URL"], result_backend=environ.get("RESULT_BACKEND"))

    def walks(self: Any, shape: str, count: int, deadly: int, how: str, key: str = "") -> str:
        rows = [Row(1000 + number, how if number == deadly else "") for number in range(1, count + 1)]

        def name(row: Any) -> object:
            return f"{key}{row.id if isinstance(row, Row) else row}"

        SHAPES[shape](lambda each: self.poison.each(each, key=name), rows)
        return shape

    for name, rerun in (("walks", True), ("once", False)):
        guarded(rerun=rerun)(app.task(walks, name=f"loops.{name}", bind=True, shared=False))
    return app


class Walks(Fleet):
    """Its tasks go through rows."""

    module = "tests.extensions.loops"
    build = staticmethod(build)

    def start(self, task: str, *args: Any, **options: Any) -> Any:
        return self.app.tasks[f"loops.{task}"].apply_async(args, **options)


if "BROKER_URL" in os.environ:
    app = build(os.environ, current=True)
