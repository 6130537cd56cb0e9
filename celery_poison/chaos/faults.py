"""How each fault is done, and the record of what was done when and to whom."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from celery_poison.chaos import poisons
from celery_poison.chaos.load import Load
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.runs import Blow
from celery_poison.chaos.stage import Stage
from celery_poison.testing import proctable, wait_until

#: Seconds that a worker gets for a warm shutdown of a deploy.
WARM = 30.0
POISON = "poison-"


class Kind(NamedTuple):
    """A kind of fault: what does it, which resource it has to itself, and where it is possible."""

    do: Callable[[Torment, Fault, Blow], None]
    alone_with: str
    brokers: tuple[str, ...]
    pools: tuple[str, ...]


KINDS: dict[str, Kind] = {}
EVERY_BROKER, EVERY_POOL = ("redis", "sentinel", "rabbitmq"), ("prefork", "threads", "gevent", "solo")

_Do = Callable[["Torment", Fault, Blow], None]


def _fault(
    name: str,
    alone_with: str = "",
    brokers: tuple[str, ...] = EVERY_BROKER,
    pools: tuple[str, ...] = EVERY_POOL,
) -> Callable[[_Do], _Do]:
    def enter(do: _Do) -> _Do:
        KINDS[name] = Kind(do, alone_with, brokers, pools)
        return do

    return enter


def possible(pool: str, broker: str) -> list[str]:
    """Return the names of all faults that there are with such a fleet."""
    return [name for name, kind in KINDS.items() if pool in kind.pools and broker in kind.brokers]


@dataclass
class Torment:
    """Does what the plan says; each fault in a thread of its own."""

    stage: Stage
    load: Load
    say: Callable[[str], None]
    blows: list[Blow] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    def play(self, plan: Iterable[Fault], seconds: float) -> None:
        """Strike for so many seconds, and wait until every fault is over."""
        began = time.monotonic()
        for number, fault in enumerate(plan):
            self.stage.wait(began + fault.at - time.monotonic())
            self._strike(number, fault)
        self.stage.wait(began + seconds - time.monotonic())
        for thread in self._threads:
            thread.join()

    def _strike(self, number: int, fault: Fault) -> None:
        thread = threading.Thread(target=self._do, args=(number, fault), name=fault.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _do(self, number: int, fault: Fault) -> None:
        if fault.name.startswith(POISON):
            self.load.send_poison(fault.name.removeprefix(POISON), number)
            return
        kind = KINDS[fault.name]
        owned = kind.alone_with.format(worker=fault.worker)
        with self._locks.setdefault(owned, threading.Lock()) if owned else contextlib.nullcontext():
            blow = Blow(fault.name, time.monotonic())
            self.blows.append(blow)
            self.say(f"{fault.at:7.2f} {fault.name} w{fault.worker}")
            try:
                kind.do(self, fault, blow)
            finally:
                blow.ended = time.monotonic()

    # -- whom it strikes

    def signal(self, blow: Blow, life: str, pids: Iterable[int], number: signal.Signals) -> None:
        blow.lives, blow.pids = (life,), tuple(pids)
        for pid in blow.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def container(self, life: str) -> list[int]:
        """Return all processes of a life. Watchers first: else who kills all looks like a suspect."""
        watchers = {pid for pid, _ in self.cells(life)}
        return sorted(self.stage.processes(life), key=lambda pid: pid not in watchers)

    def cells(self, life: str) -> list[tuple[int, int]]:
        """Return (watcher, cell) of each cell of a life."""
        pids = self.stage.processes(life)
        watchers = [pid for pid in pids if b"watcher.py" in _command(pid)]
        return [(watcher, cell) for watcher in watchers for cell in proctable.children_of(watcher)]


def _command(pid: int) -> bytes:
    try:
        return (proctable.PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


# -- workers die


@_fault("kill-main")
def _kill_main(torment: Torment, fault: Fault, blow: Blow) -> None:
    life, worker = torment.stage.present(fault.worker)
    torment.signal(blow, life, [worker.main_pid], signal.SIGKILL)


@_fault("kill-group")
def _kill_group(torment: Torment, fault: Fault, blow: Blow) -> None:
    life, worker = torment.stage.present(fault.worker)
    blow.lives, blow.pids = (life,), tuple(worker.session_pids())
    worker.kill_group()


@_fault("kill-container")
def _kill_container(torment: Torment, fault: Fault, blow: Blow) -> None:
    life, _ = torment.stage.present(fault.worker)
    torment.signal(blow, life, torment.container(life), signal.SIGKILL)


@_fault("kill-child", pools=("prefork",))
def _kill_child(torment: Torment, fault: Fault, blow: Blow) -> None:
    life, worker = torment.stage.present(fault.worker)
    watchers = {pid for pid, _ in torment.cells(life)}
    children = [pid for pid in worker.child_pids() if pid not in watchers]
    torment.signal(blow, life, _chosen(children, fault), signal.SIGKILL)


@_fault("kill-cell")
def _kill_cell(torment: Torment, fault: Fault, blow: Blow) -> None:
    _kill_in_cell(torment, fault, blow, 1)


@_fault("kill-watcher")
def _kill_watcher(torment: Torment, fault: Fault, blow: Blow) -> None:
    _kill_in_cell(torment, fault, blow, 0)


def _kill_in_cell(torment: Torment, fault: Fault, blow: Blow, which: int) -> None:
    """Strike the first cell there is in whichever worker; there may be none for a while."""
    for _ in range(50):
        for life in [torment.stage.present(n + 1)[0] for n in range(torment.stage.options.workers)]:
            if cells := torment.cells(life):
                torment.signal(blow, life, [cells[0][which]], signal.SIGKILL)
                return
        torment.stage.wait(0.1)
    blow.note = "there was no cell"


def _chosen(pids: list[int], fault: Fault) -> list[int]:
    return [pids[int(fault.dice * len(pids)) % len(pids)]] if pids else []


# -- workers stop, leave and come


def _stop(torment: Torment, fault: Fault, blow: Blow, seconds: float) -> None:
    life, _ = torment.stage.present(fault.worker)
    pids = torment.container(life)
    torment.signal(blow, life, pids, signal.SIGSTOP)
    torment.stage.wait(seconds)
    torment.signal(blow, life, pids, signal.SIGCONT)


@_fault("stop-4", alone_with="w{worker}")
def _stop_shortly(torment: Torment, fault: Fault, blow: Blow) -> None:
    _stop(torment, fault, blow, 4.0)


@_fault("stop-15", alone_with="w{worker}")
def _stop_for_long(torment: Torment, fault: Fault, blow: Blow) -> None:
    _stop(torment, fault, blow, 15.0)


@_fault("warm", alone_with="w{worker}")
def _warm(torment: Torment, fault: Fault, blow: Blow) -> None:
    _leave(torment, fault.worker, blow, signal.SIGTERM)


@_fault("cold", alone_with="w{worker}")
def _cold(torment: Torment, fault: Fault, blow: Blow) -> None:
    _leave(torment, fault.worker, blow, signal.SIGQUIT)


@_fault("deploy", alone_with="deploy")
def _deploy(torment: Torment, fault: Fault, blow: Blow) -> None:
    lives: tuple[str, ...] = ()
    for number in range(1, torment.stage.options.workers + 1):
        _leave(torment, number, blow, signal.SIGTERM)
        lives = blow.lives = (*lives, *blow.lives)
        torment.stage.wait(1.0)


def _leave(torment: Torment, number: int, blow: Blow, how: signal.Signals) -> None:
    """Ask a worker to go; who takes too long is killed, as by systemd."""
    life, worker = torment.stage.present(number)
    blow.lives = (life,)
    worker.send_signal(how)
    deadline = time.monotonic() + WARM
    while worker.is_alive() and time.monotonic() < deadline and not torment.stage.stopping.is_set():
        torment.stage.wait(0.1)
    if worker.is_alive():
        blow.note = f"{life} was killed when it had not left"
        worker.kill_group()


# -- Redis


@_fault("redis-pause", alone_with="redis")
def _redis_pause(torment: Torment, fault: Fault, blow: Blow) -> None:
    torment.stage.redis.pause()
    torment.stage.wait(1.0 + 4.0 * fault.dice)
    torment.stage.redis.resume()


@_fault("redis-kill", alone_with="redis", brokers=("redis", "rabbitmq"))
def _redis_kill(torment: Torment, fault: Fault, blow: Blow) -> None:
    torment.stage.redis.kill()
    _start_redis(torment)


def _start_redis(torment: Torment) -> None:
    # A client that tries to connect may happen to have its port for a moment.
    def started() -> bool:
        with contextlib.suppress(RuntimeError):
            torment.stage.redis.start()
            return True
        return False

    wait_until(started, what="Redis starts again", interval=0.2)


for _name in poisons.NAMES:
    _fault(POISON + _name, pools=("prefork",) if _name in poisons.ONLY_PREFORK else EVERY_POOL)(
        lambda *_: None
    )
