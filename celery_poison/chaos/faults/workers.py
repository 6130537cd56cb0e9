"""Workers die, stand still, leave and come back with another time."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

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
    watchers = {pid for pid, _ in torment.cells(life)}
    children = [pid for pid in worker.child_pids() if pid not in watchers]
    torment.signal(blow, life, _chosen(children, fault), signal.SIGKILL)


@fault("kill-cell")
def _kill_cell(torment: Torment, fault: Fault, blow: Blow) -> None:
    _kill_in_cell(torment, fault, blow, 1)


@fault("kill-watcher")
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


@fault("stop-4", owns="w{worker}")
def _stop_shortly(torment: Torment, fault: Fault, blow: Blow) -> None:
    _stop(torment, fault, blow, 4.0)


@fault("stop-15", owns="w{worker}")
def _stop_for_long(torment: Torment, fault: Fault, blow: Blow) -> None:
    _stop(torment, fault, blow, 15.0)


@fault("warm", owns="w{worker}")
def _warm(torment: Torment, fault: Fault, blow: Blow) -> None:
    _leave(torment, fault.worker, blow, signal.SIGTERM)


@fault("cold", owns="w{worker}")
def _cold(torment: Torment, fault: Fault, blow: Blow) -> None:
    _leave(torment, fault.worker, blow, signal.SIGQUIT)


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
