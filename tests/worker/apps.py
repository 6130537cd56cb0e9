"""Tasks for the tests of one worker; all leave marks through tests.apps.marks."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any

from celery import Celery, group
from celery.exceptions import Reject
from kombu import compression, serialization

from celery_poison import guarded
from celery_poison.errors import QueueFull
from tests.apps.factory import build_app, of_extensions
from tests.apps.marks import Marks, marks
from tests.worker.dying import die_after


def here() -> Marks:
    return marks(os.environ["MARKS_URL"])


def _tell(order: str, how: str) -> str:
    match how:
        case "raises":
            raise LookupError(order)
        case "hangs":
            time.sleep(600)
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
    return order


def _unless_repaired() -> str:
    if not here().repaired:
        os.kill(os.getpid(), signal.SIGKILL)
    return "repaired"


def _fail(what: str, retries: int) -> None:
    match what:
        case "ignored":
            raise KeyError("left alone")
        case "at-once":
            raise ZeroDivisionError("corrupt")
        case "once" if retries:
            return
    raise ValueError(f"{what}: try {retries}")


def _end_of_packing(task: Any, what: str) -> None:
    again = task.request.poison.deliveries > 1 or task.request.retries
    if what.startswith("dies after") and not again:
        die_after(int(what.split()[2]), task.request.id, whole="with its worker" in what)
    match what:
        case "waits":
            here().wait_at_gate()
        case "raises" | "group-raises":
            raise ValueError(what)
        case "retries" if not again:
            raise task.retry(countdown=0)
        case "rolls back" if not again:
            task.rollback()
        case "dies" if not again:
            os.kill(os.getpid(), signal.SIGKILL)
        case "dies with its worker" if not again:
            os.kill(-os.getpgrp(), signal.SIGKILL)
        case "quarantine":
            task.quarantine("smells")
        case _ if what.startswith("dies after") and again:
            raise ValueError(what)


def register_more(app: Celery) -> None:  # noqa: C901 - a list of tasks, not a decision
    """Add tasks that ask for something, and tasks that are not guarded."""

    @guarded(max_failures=3)
    @app.task(bind=True, shared=False, name="fleet.asks")
    def asks(self: Any, what: str) -> list[Any]:
        here().leave("asks", self.request.id, "start", what)
        if here().repaired:
            return list(self.request.poison[:6])
        match what:
            case "rollback-once" | "later-once" | "much-later-once" if self.request.poison.failures == 0:
                self.rollback("not now", countdown={"later-once": 3, "much-later-once": 12}.get(what, 0))
            case "rollback":
                self.rollback("not now")
            case "reject":
                raise Reject("not mine", requeue=True)
            case "quarantine":
                self.quarantine("smells wrong")
            case "discard":
                self.discard("not needed")
            case "raise":
                raise ValueError("an ordinary bug")
            case "retry-once":
                if not self.request.retries:
                    raise self.retry(countdown=0)
        return list(self.request.poison[:6])

    @guarded(max_failures=3)
    @app.task(bind=True, shared=False, name="fleet.locks")
    def locks(self: Any, kills: str = "its process") -> None:
        if not here().lock(self.request.id, seconds=8):
            raise Reject("somebody has it", requeue=True)
        if not self.request.poison.crashes:
            os.kill(0 if kills == "its worker" else os.getpid(), signal.SIGKILL)

    @guarded(keep_failures=True, ignore=(KeyError,), convict_at_once=("ZeroDivisionError",))
    @app.task(bind=True, shared=False, name="fleet.fails", max_retries=2, default_retry_delay=0)
    def fails(self: Any, what: str) -> list[Any]:
        here().leave("fails", self.request.id, "start", what)
        history = self.request.poison
        if here().repaired:
            return [history.last_cause, history.evidence.exception, history.evidence.source]
        try:
            _fail(what, self.request.retries)
        except (ValueError, ZeroDivisionError) as error:
            raise self.retry(exc=error, countdown=0) from None
        return [history.last_cause, history.evidence.exception]

    @guarded(exception_destination=None, blocked_retry_timeout=0.5)
    @app.task(bind=True, shared=False, name="fleet.stays")
    def stays(self: Any) -> str:
        here().leave("stays", self.request.id, "start")
        return _unless_repaired()

    @guarded(exception_destination=None, blocked_retry_timeout=-1)
    @app.task(bind=True, shared=False, name="fleet.stays_for_ever")
    def stays_for_ever(self: Any) -> str:
        here().leave("stays_for_ever", self.request.id, "start")
        return _unless_repaired()

    @guarded
    @app.task(bind=True, shared=False, name="fleet.dies_once")
    def dies_once(self: Any, *, worker: bool) -> list[Any]:
        if not self.request.poison.crashes:
            os.kill(-os.getpgrp() if worker else os.getpid(), signal.SIGKILL)
        here().leave("dies_once", self.request.id, "why", self.request.poison.last_cause)
        return list(self.request.poison[:6])

    @guarded
    @app.task(bind=True, shared=False, name="fleet.kills_then_waits")
    def kills_then_waits(self: Any, pid: int) -> None:
        if not here().repaired:
            os.kill(pid, signal.SIGKILL)
        here().leave("kills_then_waits", self.request.id, "start")
        while not here().repaired:
            time.sleep(0.02)

    @app.task(bind=True, shared=False, name="fleet.early")
    def early(self: Any) -> str:
        here().leave("early", self.request.id, "start")
        if not here().repaired:
            os.kill(os.getpid(), signal.SIGKILL)
        return "repaired"

    @guarded
    @app.task(bind=True, shared=False, name="fleet.succeeds_then_dies")
    def succeeds_then_dies(self: Any) -> str:
        here().leave("succeeds_then_dies", self.request.id, "start")
        return "stored"

    type(app.tasks["fleet.succeeds_then_dies"]).on_success = lambda *args: os.kill(os.getpid(), 9)

    @guarded(max_crashes=3)
    @app.task(bind=True, shared=False, name="fleet.retried_when_lost", retry_on_worker_lost=True,
              max_retries=5, default_retry_delay=0)  # fmt: skip
    def retried_when_lost(self: Any) -> None:
        here().leave("retried_when_lost", self.request.id, "start", self.request.retries)
        if not here().repaired:
            os.kill(os.getpid(), signal.SIGKILL)

    @guarded
    @app.task(bind=True, shared=False, name="fleet.adds")
    def adds(self: Any, numbers: Any, n: int = 0) -> int:
        here().leave("adds", self.request.id, "start", n)
        return sum(numbers) + n if isinstance(numbers, list) else numbers + n

    @guarded
    @app.task(bind=True, shared=False, name="fleet.recovers")
    def recovers(self: Any, *args: Any) -> int:
        here().leave("recovers", self.request.id, "start")
        if not here().repaired:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1000

    @app.task(bind=True, shared=False, name="fleet.told")
    def told(self: Any, *args: Any) -> None:
        here().leave("told", str(self.request.id), "start", args[0] if args else None)

    @guarded
    @app.task(bind=True, shared=False, name="fleet.counted")
    def counted(self: Any, *args: Any, **named: Any) -> None:
        here().leave("counted", "", "start", args[0] if args else None)

    @guarded(max_failures=2)
    @app.task(bind=True, shared=False, name="fleet.says")
    def says(self: Any, how: str, words: str) -> str:
        if self.request.poison.failures:
            return words
        if how == "raises":
            raise ValueError(words)
        return getattr(self, how)(words)

    @guarded(max_payload_bytes=1000)
    @app.task(bind=True, shared=False, name="fleet.small")
    def small(self: Any, text: str) -> int:
        here().leave("small", self.request.id, "start")
        return len(text)

    @guarded(fingerprint=_tell)
    @app.task(bind=True, shared=False, name="fleet.tells")
    def tells(self: Any, order: str, how: str) -> str:
        here().leave("tells", self.request.id, "start", order)
        return order

    @guarded
    @app.task(bind=True, shared=False, name="fleet.endless")
    def endless(self: Any) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.setrecursionlimit(10**8)
        repr(Endless())

    @guarded
    @app.task(bind=True, shared=False, name="fleet.forks")
    def forks(self: Any, how: str) -> int:
        """Return the exit status of a process that it has forked, which leaves this body by itself."""
        if pid := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if how == "exits":
            sys.exit(3)
        if how == "lacks memory":
            raise MemoryError("in the child")
        if how == "raises":
            raise ValueError("in the child")
        if how == "rolls back":
            self.rollback()
        if how == "aborts":
            os.abort()
        return -1

    @guarded
    @app.task(shared=False, name="fleet.multiprocesses")
    def multiprocesses(how: str) -> bool:
        """Return whether a process of a library, or a thread, has ended by sys.exit()."""
        process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(3,), daemon=False)
        if how == "a thread":
            thread = threading.Thread(target=sys.exit, args=(3,))
            thread.start()
            thread.join()
            return not thread.is_alive()
        process.start()
        process.join()
        return process.exitcode is not None

    @guarded
    @app.task(bind=True, shared=False, name="fleet.eats")
    def eats(self: Any, most: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most or soft, hard))
        eaten = []
        try:
            while True:
                eaten.append(b"x" * (1 << 20))
        finally:  # else there is no memory to tell of it
            eaten.clear()
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    @guarded
    @app.task(shared=False, name="fleet.fills")
    def fills(megabytes: int) -> int:
        return len(b"x" * (megabytes << 20))

    @guarded
    @app.task(bind=True, shared=False, name="fleet.waits_for_repair")
    def waits_for_repair(self: Any, n: int) -> int:
        here().leave("waits_for_repair", self.request.id, "start", n)
        while not here().repaired:
            time.sleep(0.02)
        here().leave("waits_for_repair", self.request.id, "end", n)
        return n

    @guarded
    @app.task(bind=True, shared=False, name="fleet.alarm")
    def alarm(self: Any, report: Any) -> None:
        here().leave("alarm", self.request.id, "start", report)
        if "dies" in str(report["input"]["args"]) and report["kind"] == "on_quarantine":
            os.kill(os.getpid(), signal.SIGKILL)
        if "raise" in str(report["input"]["args"]):
            raise ValueError("an alarm that fails")

    @app.task(shared=False, name="fleet.ship")
    def ship(box: str) -> None: ...

    @guarded
    @app.task(shared=False, name="fleet.ships")
    def ships(box: str) -> str:
        try:
            ship.apply_async((box,), queue="ships")
        except QueueFull as full:
            return str(full)
        return "shipped"

    @guarded(max_failures=3)
    @app.task(bind=True, shared=False, name="fleet.packs", max_retries=1)
    def packs(self: Any, what: str) -> str:
        here().leave("packs", self.request.id, "start", what)
        boxes = [ship.si(f"{what}:{n}").set(queue="ships") for n in range(3)]
        with self.publishing():
            if what in ("group", "group-raises"):
                group(boxes).apply_async()
            else:
                for box in boxes:
                    box.apply_async()
        with suppress(LookupError), self.publishing():
            ship.apply_async(("dropped",), queue="ships")
            raise LookupError
        here().leave("packs", self.request.id, "packed", what)
        _end_of_packing(self, what)
        return what

    @guarded(**of_extensions(transactional_publish=True, idempotency_key=lambda what: what))
    @app.task(bind=True, shared=False, name="fleet.packs_all")
    def packs_all(self: Any, what: str) -> str:
        ship.apply_async((f"{what}:0",), queue="ships")
        _end_of_packing(self, what)
        return what

    @guarded(**of_extensions(idempotency_key=lambda order, what: order))
    @app.task(bind=True, shared=False, name="fleet.pays")
    def pays(self: Any, order: int, what: str) -> str:
        here().leave("pays", self.request.id, "start", order)
        while what == "waits" and not here().repaired:
            time.sleep(0.02)
        if what == "raises":
            raise ValueError("no money")
        if what == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return f"paid by {self.request.id}"


def _mail(task: Any, how: str) -> None:
    match how:
        case "waits":
            while not here().repaired:
                time.sleep(0.02)
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "is asked to end":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)
        case "takes its worker along":
            os.kill(-os.getpgrp(), signal.SIGKILL)
        case "hangs":
            time.sleep(600)
        case "retries" if not task.request.retries:
            raise task.retry(countdown=0)
        case "puts itself back" if not task.request.poison.failures:
            raise Reject("later", requeue=True)
        case "asks for quarantine":
            task.quarantine("look at it")


def register_mails(app: Celery) -> None:
    """Add tasks that must not run twice, and one whose caller hears at its conviction."""

    @guarded(rerun=False, exception_destination=None, blocked_retry_timeout=0)
    @app.task(bind=True, shared=False, name="fleet.mails", time_limit=None)
    def mails(self: Any, how: str) -> str:
        here().leave("mails", self.request.id, "start", how)
        if not (here().repaired and how != "waits"):
            _mail(self, how)
        here().leave("mails", self.request.id, "end", how)
        return "sent"

    @guarded(max_crashes=1, **of_extensions(tell="conviction"))
    @app.task(bind=True, shared=False, name="fleet.vows")
    def vows(self: Any, how: str = "") -> str:
        here().leave("vows", self.request.id, "start")
        if how == "crashes":
            ctypes.string_at(0)
        return _unless_repaired()

    type(app.tasks["fleet.vows"]).on_failure = lambda self, exc, id, *rest: here().leave(
        "vows", id, "on_failure", type(exc).__name__
    )

    # Acknowledges early without us: nothing of it runs twice, so nothing of it is to be lost.
    @app.task(bind=True, shared=False, name="fleet.mails_early", acks_late=False)
    def mails_early(self: Any) -> str:
        here().leave("mails_early", self.request.id, "start")
        return _unless_repaired()


def register_new(app: Celery) -> None:
    """Add the tasks that an older release of the code does not know."""

    @guarded
    @app.task(bind=True, shared=False, name="fleet.new_guarded")
    def new_guarded(self: Any, n: int) -> int:
        here().leave("new_guarded", self.request.id, "start", n)
        return n

    @app.task(bind=True, shared=False, name="fleet.new_plain")
    def new_plain(self: Any, n: int) -> int:
        here().leave("new_plain", self.request.id, "start", n)
        return n


#: A compression whose decompression kills.
KILLS = "application/x-kills"


def _compress(body: bytes) -> bytes:
    return body


def _kill_who_decompresses(body: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return body


compression.register(_compress, _kill_who_decompresses, KILLS)

#: A serializer whose decoder kills its process where the text says so, and leaves word who has asked it to.
DEADLY = "deadly"


def _kill_who_decodes(body: bytes | str) -> Any:  # text, on RabbitMQ
    body = body if isinstance(body, str) else bytes(body).decode()
    if "dies" in body:
        files = [frame.filename for frame in traceback.extract_stack()]
        here().leave("decodes", "for a hold" if any("by_value" in file for file in files) else "", "dies")
        os._exit(1)
    return json.loads(body)


serialization.register(DEADLY, json.dumps, _kill_who_decodes, "application/x-deadly", "utf-8")


class Endless:
    def __repr__(self) -> str:
        return repr(self)


def build(environ: Any, *, current: bool = False) -> Celery:
    app = build_app(environ, current=current)
    register_more(app)
    register_mails(app)
    if environ.get("NEW_RELEASE"):
        register_new(app)
    return app
