"""The app of a fleet whose tasks take memory, or do what innocents do beside them."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery

from celery_poison import extensions, guarded
from celery_poison.cli.standby import StandaloneMonitor
from tests.apps.factory import DEFAULTS
from tests.apps.harness import Fleet


def grows(mb_per_s: int, mb: int) -> int:
    """Take memory as fast as that, and keep it."""
    held, began = list[bytearray](), time.monotonic()
    while len(held) < mb:
        held.append(bytearray(os.urandom(1) * (1 << 20)))
        time.sleep(max(0.0, began + len(held) / mb_per_s - time.monotonic()))
    time.sleep(60)
    return len(held)


def swallows(mb: int) -> int:
    """Take it in one call that lets no other thread of its process run."""
    held = bytes(range(256)) * (mb << 12)
    time.sleep(60)
    return len(held)


def waits(seconds: float = 60) -> None:
    time.sleep(seconds)


def holds(mb: int, seconds: float = 60) -> int:
    """Take memory once, a second after it began."""
    time.sleep(1)
    held = b"x" * (mb << 20)
    time.sleep(seconds)
    return len(held)


def computes(seconds: float = 60) -> str:
    until, digest = time.monotonic() + seconds, b""
    while time.monotonic() < until:
        for _ in range(200):
            digest = hashlib.sha256(digest + b"0123456789" * 200).digest()
        time.sleep(0.002)
    return digest.hex()


def churns(seconds: float = 60) -> int:
    """Take memory and give it back, all the time."""
    until, turns = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        turns += len([str(number) for number in range(20_000)]) > 0
        time.sleep(0.02)
    return turns


def crashes(mb: int = 0) -> None:
    """End its process natively, after it has grown for a second."""
    held, began = list[bytearray](), time.monotonic()
    while len(held) < mb:
        held.append(bytearray(b"x" * (1 << 20)))
        time.sleep(max(0.0, began + len(held) / mb - time.monotonic()))
    ctypes.string_at(0)  # here


TASKS = (grows, swallows, waits, holds, computes, churns, crashes)


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = Celery("box", set_as_current=current)
    app.conf.update(DEFAULTS)
    app.conf.update(json.loads(environ.get("POISON_SETTINGS", "{}")))
    app.conf.update(broker_url=environ["BROKER_URL"], result_backend=environ.get("RESULT_BACKEND"))
    for function in TASKS:
        guarded(app.task(function, name=f"box.{function.__name__}", shared=False))
    return app


class Boxes(Fleet):
    """Its workers have black boxes."""

    module = "tests.extensions.boxes"
    build = staticmethod(build)

    def start(self, task: str, *args: Any, **options: Any) -> Any:
        return self.app.tasks[f"box.{task}"].apply_async(args, **options)


@contextmanager
def watching(boxes: Boxes) -> Iterator[None]:
    """A monitor of this fleet in a thread of this process."""
    monitor = StandaloneMonitor(boxes.app)
    thread = threading.Thread(target=monitor.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        monitor.stop()
        thread.join()


if "BROKER_URL" in os.environ:
    if "NO_BLACK_BOX" in os.environ:  # to be compared with
        extensions.ORDER = tuple(name for name in extensions.ORDER if name != "black_box")
    app = build(os.environ, current=True)
