"""Every fault, and how it is done. Importing this enters them all into the list."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from celery_poison import procfs
from celery_poison.chaos.app import ONLY_PREFORK, POISONS
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.runs import Blow
from celery_poison.chaos.surroundings import TcpProxy
from celery_poison.chaos.torment import EVERY_POOL, KINDS, ONE_REDIS, Torment, fault, possible

__all__ = ["KINDS", "possible"]
from celery_poison.ledger.keys import Keys
from celery_poison.testing import wait_until

# --- workers die, stand still, leave and come back with another time --------------------------------------

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


@fault("stop-4", owns="w{worker}", seconds=4.0)
@fault("stop-15", owns="w{worker}", seconds=15.0)
def _stop(torment: Torment, fault: Fault, blow: Blow, seconds: float) -> None:
    life, _ = torment.stage.present(fault.worker)
    pids = torment.container(life)
    torment.signal(blow, life, pids, signal.SIGSTOP)
    torment.stage.wait(seconds)
    torment.signal(blow, life, pids, signal.SIGCONT)


@fault("warm", owns="w{worker}", how=signal.SIGTERM)
@fault("cold", owns="w{worker}", how=signal.SIGQUIT)
def _asked(torment: Torment, fault: Fault, blow: Blow, how: signal.Signals) -> None:
    _leave(torment, fault.worker, blow, how)


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


# --- the network between one worker and its servers is cut, silent or slow --------------------------------

#: Seconds that every packet of a slow network takes more.
DELAY = 0.1


@fault("net-drop", owns="net{worker}", brokers=ONE_REDIS)
def _drop(torment: Torment, fault: Fault, blow: Blow) -> None:
    """All its connections end; new ones are welcome."""
    for proxy in _struck(torment, fault, blow):
        proxy.drop_connections()


@fault("net-cut-5", owns="net{worker}", brokers=ONE_REDIS, seconds=5.0)
@fault("net-cut-15", owns="net{worker}", brokers=ONE_REDIS, seconds=15.0)
def _cut(torment: Torment, fault: Fault, blow: Blow, seconds: float) -> None:
    """All its connections end, and new ones are refused."""
    for proxy in _struck(torment, fault, blow):
        proxy.cut()
    _heal_after(torment, fault, seconds)


@fault("net-freeze-4", owns="net{worker}", brokers=ONE_REDIS, seconds=4.0)
@fault("net-freeze-15", owns="net{worker}", brokers=ONE_REDIS, seconds=15.0)
def _freeze(torment: Torment, fault: Fault, blow: Blow, seconds: float) -> None:
    """Its connections stay, and nothing comes through."""
    for proxy in _struck(torment, fault, blow):
        proxy.freeze()
    _heal_after(torment, fault, seconds)


@fault("net-slow", owns="net{worker}", brokers=ONE_REDIS)
def _slow(torment: Torment, fault: Fault, blow: Blow) -> None:
    for proxy in _struck(torment, fault, blow):
        proxy.slow_down(DELAY)
    _heal_after(torment, fault, 8.0)


def _struck(torment: Torment, fault: Fault, blow: Blow) -> list[TcpProxy]:
    blow.lives = (torment.stage.present(fault.worker)[0],)
    return torment.stage.proxies(fault.worker)


def _heal_after(torment: Torment, fault: Fault, seconds: float) -> None:
    torment.stage.wait(seconds)
    for proxy in torment.stage.proxies(fault.worker):
        proxy.slow_down(0.0)
        proxy.heal()


# --- a message comes that kills whoever runs it -----------------------------------------------------------

PREFIX = "poison-"


def _send(torment: Torment, fault: Fault, blow: Blow) -> None:
    blow.note = torment.load.send_poison(fault.name.removeprefix(PREFIX))


for _name in POISONS:
    fault(PREFIX + _name, pools=("prefork",) if _name in ONLY_PREFORK else EVERY_POOL)(_send)


# --- servers die, stand still, forget, fail over and run out of disk --------------------------------------

#: Returns what carries messages, and empties Redis, in one step: what was there is exactly what is lost.
_TAKE_AND_EMPTY = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
    local kind = redis.call('TYPE', key).ok
    if kind == 'list' then
        found[#found + 1] = table.concat(redis.call('LRANGE', key, 0, -1), ' ')
    elseif kind == 'hash' and (key == 'unacked' or key == ARGV[1]) then
        found[#found + 1] = table.concat(redis.call('HVALS', key), ' ')
    end
end
redis.call('FLUSHALL')
return table.concat(found, ' ')
"""
_TASK_ID = re.compile(rb"[a-z_]+\d+\.\d+")


@fault("redis-pause", owns="redis", brokers=ONE_REDIS)
def _pause(torment: Torment, fault: Fault, blow: Blow) -> None:
    torment.stage.redis.pause()
    torment.stage.wait(1.0 + 4.0 * fault.dice)
    torment.stage.redis.resume()


@fault("redis-kill", owns="redis", brokers=ONE_REDIS)
def _kill(torment: Torment, fault: Fault, blow: Blow) -> None:
    torment.stage.redis.kill()
    _start(torment)


@fault("redis-down", owns="redis", brokers=ONE_REDIS)
def _down(torment: Torment, fault: Fault, blow: Blow) -> None:
    torment.stage.redis.kill()
    torment.stage.wait(5.0)
    _start(torment)


@fault("redis-lost-second", owns="redis", brokers=ONE_REDIS)
def _lost_second(torment: Torment, fault: Fault, blow: Blow) -> None:
    """What a machine's crash leaves of ``appendfsync everysec``: all but the last second."""
    parked = _parked(torment)
    sizes = {path: path.stat().st_size for path in _append_only_files(torment)}
    torment.stage.wait(1.0)
    blow.gone = tuple(sorted(_parked(torment) - parked))
    torment.stage.redis.kill()
    for path in _append_only_files(torment):
        # One that has been rewritten meanwhile is whole.
        if path in sizes:
            os.truncate(path, sizes[path])
    _start(torment)


def _await_redis(torment: Torment) -> None:
    with contextlib.suppress(AssertionError):  # it may be loading what another fault has left of it
        wait_until(lambda: torment.stage.stopping.is_set() or torment.stage.redis_answers(), timeout=30)


def _parked(torment: Torment) -> set[str]:
    _await_redis(torment)
    with torment.stage.redis.client(decode_responses=False) as client:
        bodies: Any = client.hvals(Keys().parcels)
    return {id.decode() for body in bodies for id in _TASK_ID.findall(body)}


@fault("redis-empty", owns="redis")
def _empty(torment: Torment, fault: Fault, blow: Blow) -> None:
    _await_redis(torment)
    with torment.stage.redis.client(decode_responses=False) as client:
        there = client.eval(_TAKE_AND_EMPTY, 0, Keys().parcels)
    # Also what is being sent at this moment: its sender does not know yet that it has arrived.
    blow.gone = tuple(sorted({id.decode() for id in _TASK_ID.findall(there)}))


@fault("redis-full", owns="redis", brokers=ONE_REDIS)
def _full(torment: Torment, fault: Fault, blow: Blow) -> None:
    """Fill the file system of the append-only file: Redis gives up, and is started when there is room."""
    stage = torment.stage
    assert stage.redis_disk is not None
    stage.redis_disk.fill()
    with contextlib.suppress(AssertionError):
        wait_until(lambda: stage.stopping.is_set() or not stage.redis_answers(), timeout=10)
    stage.redis.kill()
    stage.redis_disk.clear()
    _start(torment)


@fault("redis-failover", owns="redis", brokers=("sentinel",))
def _failover(torment: Torment, fault: Fault, blow: Blow) -> None:
    """The master dies, the replica takes over, and the old master comes back as its replica."""
    assert torment.stage.sentinel is not None
    torment.stage.sentinel.fail_over(kill=True)
    torment.stage.sentinel.replica.start()
    torment.stage.sentinel.wait_whole()


@fault("redis-switch", owns="redis", brokers=("sentinel",))
def _switch(torment: Torment, fault: Fault, blow: Blow) -> None:
    """The replica takes over while the master lives, and takes writes for some seconds more."""
    assert torment.stage.sentinel is not None
    torment.stage.sentinel.fail_over(kill=False)
    torment.stage.sentinel.wait_whole()


@fault("rabbit-kill", owns="rabbit", brokers=("rabbitmq",))
def _rabbit_kill(torment: Torment, fault: Fault, blow: Blow) -> None:
    assert torment.stage.rabbit is not None
    torment.stage.rabbit.kill()
    torment.stage.rabbit.start()


@fault("rabbit-pause", owns="rabbit", brokers=("rabbitmq",))
def _rabbit_pause(torment: Torment, fault: Fault, blow: Blow) -> None:
    assert torment.stage.rabbit is not None
    torment.stage.rabbit.pause()
    torment.stage.wait(2.0 + 4.0 * fault.dice)
    torment.stage.rabbit.resume()


@fault("rabbit-close", owns="rabbit", brokers=("rabbitmq",))
def _rabbit_close(torment: Torment, fault: Fault, blow: Blow) -> None:
    assert torment.stage.rabbit is not None
    torment.stage.rabbit.ctl("close_all_connections", "chaos")


def _append_only_files(torment: Torment) -> list[Path]:
    return sorted((torment.stage.redis_data / "appendonlydir").glob("*.incr.aof"))


def _start(torment: Torment) -> None:
    # A client that tries to connect may happen to have its port for a moment.
    def started() -> bool:
        with contextlib.suppress(RuntimeError):
            torment.stage.redis.start()
            return True
        return False

    wait_until(started, what="Redis starts again", interval=0.2)
