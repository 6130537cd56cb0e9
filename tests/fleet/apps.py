"""More tasks: one holds its message until it is let go, and notices when it runs twice at one time."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

from celery import Celery

from celery_poison import guarded
from celery_poison.basics import procfs
from celery_poison.basics.procfs import MemoryGroup
from tests.apps.factory import of_extensions
from tests.apps.handlers import hear_all
from tests.apps.marks import Marks, marks
from tests.worker.apps import build as build_more

#: Who is let go: everybody, or one process.
GO = "FAILOVER_GO"


def here() -> Marks:
    return marks(os.environ["MARKS_URL"])


def register_holds(app: Celery) -> None:
    @guarded
    @app.task(bind=True, shared=False, name="fleet.holds")
    def holds(self: Any, n: Any) -> int:
        return _hold(self.request.id, n)

    @guarded(**of_extensions(transactional_publish=True))
    @app.task(bind=True, shared=False, name="fleet.holds_and_ships")
    def holds_and_ships(self: Any, n: Any) -> int:
        for box in range(2):
            app.tasks["fleet.ship"].apply_async((f"{n}:{box}:{os.getpid()}",), queue="ships")
        return _hold(self.request.id, n)

    @guarded
    @app.task(bind=True, shared=False, name="fleet.swells")
    def swells(self: Any, n: Any) -> None:
        """Use nearly all the memory that its control group may use, and keep it until it is let go."""
        group, kept = MemoryGroup(), []
        while group.used() < 0.93 * (group.limit() or 0):
            kept.append(b"x" * (4 << 20))
        here().leave("swells", self.request.id, "start", n)
        while not may_go(here()):
            time.sleep(0.02)


def _hold(id: str, n: Any) -> int:
    mine = here()
    mine.leave("holds", id, "start", n)
    if _runs_elsewhere(mine, id):
        mine.leave("holds", id, "twice", n)
    while not may_go(mine):
        time.sleep(0.02)
    mine.leave("holds", id, "end", n)
    return os.getpid()


def may_go(mine: Marks) -> bool:
    return bool(mine._redis.sismember(GO, "all") or mine._redis.sismember(GO, str(os.getpid())))


def let_go(mine: Marks, who: int | str = "all") -> None:
    mine._redis.sadd(GO, str(who))


def _runs_elsewhere(mine: Marks, id: str) -> bool:
    """Whether another start of this message has not ended, and its process is one that runs.

    A stopped process runs nothing: that it goes on when it is revived, until it has noticed, is known.
    """
    begun: Counter[int] = Counter()
    for mark in mine.all("holds"):
        if mark.id == id:
            begun[mark.pid] += {"start": 1, "end": -1}.get(mark.event, 0)
    begun[os.getpid()] -= 1
    return any(count > 0 and _is_running(pid) for pid, count in begun.items())


def _is_running(pid: int) -> bool:
    found = procfs.process(pid)
    return found is not None and found.state not in "TtZX"


def build(environ: Any, *, current: bool = False) -> Celery:
    app = build_more(environ, current=current)
    register_holds(app)
    if current:
        hear_all(here)
    return app
