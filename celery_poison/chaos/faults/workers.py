"""Workers die, stand still, leave and come back with another time."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from celery_poison import procfs
from celery_poison.chaos.faults.kind import fault
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.runs import Blow

if TYPE_CHECKING:
    from celery_poison.chaos.torment import Torment

#: Seconds that a worker gets for a warm shutdown of a deploy.
WARM = 30.0
#: Seconds by which a clock is moved, at most.
FAR = 3600.0


@fault("kill-main")
def _kill_main(torment: Torment, fault: Fault, blow: Blow) -> None:
    life, worker = torment.stage.present(fault.worker)
    torment.signal(blow, life, [worker.main_pid], signal.SIGKILL)


@fault("kill-group")
def _kill_group(torment: Torment, fault: Fault, blow: Blow) -> None:
    life, worker = torment.stage.present(fault.worker)
    blow.lives, blow.pids = (life,), tuple(worker.session_pids())
    worker.kill_group()


@fault("kill-container")
def _kill_container(torment: Torment, fault: Fault, blow: Blow) -> None:
    life, _ = torment.stage.present(fault.worker)
    torment.signal(blow, life, torment.container(life), signal.SIGKILL)


@fault("kill-child", pools=("prefork",))
def _kill_child(torment: Torment, fault: Fault, blow: Blow) -> None:
    life, worker = torment.stage.present(fault.worker)
    watchers = torment.watchers(worker)
    children = [pid for pid in worker.child_pids() if pid not in watchers]
    torment.signal(blow, life, _chosen(children, fault), signal.SIGKILL)


@fault("kill-cell")
def _kill_cell(torment: Torment, fault: Fault, blow: Blow) -> None:
    if found := _wait_for_watcher(torment, blow):
        torment.signal(blow, found[0], procfs.children_of(found[1])[:1], signal.SIGKILL)


@fault("kill-watcher")
def _kill_watcher(torment: Torment, fault: Fault, blow: Blow) -> None:
    if found := _wait_for_watcher(torment, blow):
        torment.signal(blow, found[0], [found[1]], signal.SIGKILL)


def _wait_for_watcher(torment: Torment, blow: Blow) -> tuple[str, int] | None:
    """Return the life and the watcher of the first cell there is in whichever worker; there may be none."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until and not torment.stage.stopping.is_set():
        for life, worker in map(torment.stage.present, torment.stage.numbers):
            if watchers := torment.watchers(worker):
                return life, watchers[0]
        torment.stage.wait(0.2)
    blow.note = "there was no cell"
    return None


def _chosen(pids: list[int], fault: Fault) -> list[int]:
    return [pids[int(fault.dice * len(pids)) % len(pids)]] if pids else []


# -- workers stop, leave and come


def _stop(torment: Torment, fault: Fault, blow: Blow, seconds: float) -> None:
    life, _ = torment.stage.present(fault.worker)
    pids = torment.container(life)
    torment.signal(blow, life, pids, signal.SIGSTOP)
    torment.stage.wait(seconds)
    torment.signal(blow, life, pids, signal.SIGCONT)


def _asked(torment: Torment, fault: Fault, blow: Blow, how: signal.Signals) -> None:
    _leave(torment, fault.worker, blow, how)


for _name, _do in (
    ("stop-4", partial(_stop, seconds=4.0)),
    ("stop-15", partial(_stop, seconds=15.0)),
    ("warm", partial(_asked, how=signal.SIGTERM)),
    ("cold", partial(_asked, how=signal.SIGQUIT)),
):
    fault(_name, owns="w{worker}")(_do)


@fault("deploy", owns="deploy")
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


# -- what else is around a worker


@fault("clock", owns="clock{worker}")
def _clock(torment: Torment, fault: Fault, blow: Blow) -> None:
    """Move its clock for a while, forth or back; what it had before comes back by another jump."""
    life, _ = torment.stage.present(fault.worker)
    blow.lives = (life,)
    torment.stage.clocks[fault.worker].move((fault.dice - 0.5) * 2 * FAR)
    torment.stage.wait(10.0)
    torment.stage.clocks[fault.worker].move(0.0)


@fault("disk-full", owns="disk")
def _disk_full(torment: Torment, fault: Fault, blow: Blow) -> None:
    """Fill the file system on which all workers have their temporary files."""
    assert torment.stage.disk is not None
    torment.stage.disk.fill()
    torment.stage.wait(8.0)
    torment.stage.disk.clear()
