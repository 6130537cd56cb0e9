"""The app of a shop whose versions bring tasks that kill: each task's ways depend on ``SHOP_VERSION``."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_poison import guarded
from tests.apps.factory import build_app
from tests.apps.harness import Fleet
from tests.apps.marks import marks

VERSION = "SHOP_VERSION"


def _leave(task: str, n: int, event: str = "start") -> int:
    """Say that this version of a task begins; return how many runs have begun."""
    version = os.environ.get(VERSION, "")
    found = marks(os.environ["MARKS_URL"])
    found.leave(task, version, event, n)
    return len(found.all(task, "start"))


def _crash() -> None:
    if marks(os.environ["MARKS_URL"]).repaired:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def convert(n: int) -> int:
    _leave("convert", n)
    if os.environ.get(VERSION, "").startswith("bad"):
        _crash()
    return n


def third(n: int) -> int:
    if _leave("third", n) % 3 == 0:
        _crash()
    return n


def picky(n: int) -> int:
    """Die of some arguments under every version."""
    _leave("picky", n)
    if n >= 13:
        _crash()
    return n


def thumb(n: int) -> int:
    _leave("thumb", n)
    return n


def waits(n: int) -> int:
    _leave("waits", n)
    marks(os.environ["MARKS_URL"]).wait_at_gate()
    return n


def mail(n: int) -> int:
    """What must not run twice, and whose caller hears of a conviction."""
    _leave("mail", n)
    if os.environ.get(VERSION, "").startswith("bad"):
        _crash()
    if os.environ.get(VERSION) == "slow":
        marks(os.environ["MARKS_URL"]).wait_at_gate()
    return n


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = build_app(environ, current=current)
    if VERSION in environ:
        app.conf.poison_code_version = environ[VERSION]
    for function in (convert, third, picky, thumb, waits):
        guarded(app.task(function, name=f"fleet.{function.__name__}", shared=False))
    guarded(rerun=False, tell="conviction")(app.task(mail, name="fleet.mail", shared=False))
    return app


class Shop(Fleet):
    """Its workers are of one version each."""

    module = "tests.extensions.shop"
    build = staticmethod(build)

    def of(self, version: str, name: str = "w1", **options: Any) -> Any:
        return self.worker(name, env={VERSION: version}, **options)

    def runs(self, task: str, version: str) -> list[int]:
        """First arguments of the runs that have begun."""
        return [mark.n for mark in self.marks.all(task, "start") if mark.id == version]

    def parked(self) -> int:
        return self.quarantine.queries.totals()["parked"]


if "BROKER_URL" in os.environ:
    app = build(os.environ, current=True)
