"""Every fault, and how it is done."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from celery_poison.basics import procfs
from celery_poison.cells.watcher import WATCHER
from celery_poison.ledger.keys import Keys
from celery_poison.testing import Worker, wait_until
from tests.chaos.app import ONLY_PREFORK, POISONS
from tests.chaos.runs import Blow, Fault
from tests.chaos.stage import SLOTS, Stage
from tests.chaos.surroundings import filled, set_clock
from tests.harness.proxy import TcpProxy

EVERY_BROKER = ("redis", "sentinel", "rabbitmq")
#: On a Redis that does not fail over by itself as soon as it does not answer.
ONE_REDIS = ("redis", "rabbitmq")
EVERY_POOL = tuple(SLOTS)
EVERY_LEDGER = ("beside", "cluster")
#: Who may not mount a small file system cannot fill one.
NEED_A_DISK = ("disk-full", "redis-full")


class Kind(NamedTuple):
    """A kind of fault.

    ``do`` is given the stage, the plan's fault and the blow to be filled in. ``owns`` names what no other
    fault may touch meanwhile, with ``{worker}`` for the number of the one it strikes; empty for nothing.
    ``brokers``, ``pools`` and ``ledgers``: where there is such a thing.
    """

    do: Callable[..., None]
    owns: str
    brokers: tuple[str, ...]
    pools: tuple[str, ...]
    ledgers: tuple[str, ...]


KINDS: dict[str, Kind] = {}
T = TypeVar("T", bound=Callable[..., None])


def fault(
    name: str,
    owns: str = "",
    brokers: tuple[str, ...] = EVERY_BROKER,
    pools: tuple[str, ...] = EVERY_POOL,
    ledgers: tuple[str, ...] = EVERY_LEDGER,
    **settings: Any,
) -> Callable[[T], T]:
    """Enter a function into the list; ``settings`` are further arguments for it."""

    def enter(do: T) -> T:
        KINDS[name] = Kind(partial(do, **settings), owns, brokers, pools, ledgers)
        return do

    return enter


def possible(pool: str, broker: str, ledger: str = "beside") -> list[str]:
    """Return the names of all faults that there are with such a fleet."""
    return [
        name
        for name, kind in KINDS.items()
        if pool in kind.pools and broker in kind.brokers and ledger in kind.ledgers
    ]


# --- workers die, stand still, leave and come back with another time --------------------------------------


def _strike(stage: Stage, fault: Fault, blow: Blow) -> Worker:
    life, worker = stage.present(fault.worker)
    blow.lives = (life,)
    return worker


def _signal(blow: Blow, pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, one after the other without a pause."""
    blow.pids = tuple(pids)
    for pid in blow.pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _container(stage: Stage, blow: Blow) -> list[int]:
    """Return all processes of a life. Watchers first: else who kills all looks like a suspect."""
    return sorted(stage.processes(blow.lives[0]), key=lambda pid: not _is_watcher(pid))


def _is_watcher(pid: int) -> bool:
    """Whether it watches a cell, which is its child."""
    return procfs.name(pid) == WATCHER


@fault("kill-main")
def _kill_main(stage: Stage, fault: Fault, blow: Blow) -> None:
    _signal(blow, [_strike(stage, fault, blow).main_pid], signal.SIGKILL)


@fault("kill-group")
def _kill_group(stage: Stage, fault: Fault, blow: Blow) -> None:
    worker = _strike(stage, fault, blow)
    blow.pids = tuple(worker.session_pids())
    worker.kill_group()


@fault("kill-container")
def _kill_container(stage: Stage, fault: Fault, blow: Blow) -> None:
    _strike(stage, fault, blow)
    _signal(blow, _container(stage, blow), signal.SIGKILL)


@fault("kill-child", pools=("prefork",))
def _kill_child(stage: Stage, fault: Fault, blow: Blow) -> None:
    if children := _strike(stage, fault, blow).child_pids():
        _signal(blow, [children[int(fault.dice * len(children)) % len(children)]], signal.SIGKILL)


@fault("kill-cell", victims=lambda watcher: procfs.children_of(watcher)[:1])
@fault("kill-watcher", victims=lambda watcher: [watcher])
def _kill_cell(stage: Stage, fault: Fault, blow: Blow, victims: Callable[[int], list[int]]) -> None:
    """Strike the first cell there is in whichever worker; there may be none."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until and not stage.stopping.is_set():
        for life, _ in map(stage.present, stage.numbers):
            if watchers := [pid for pid in stage.processes(life) if _is_watcher(pid)]:
                blow.lives = (life,)
                _signal(blow, victims(watchers[0]), signal.SIGKILL)
                return
        stage.wait(0.2)
    blow.note = "there was no cell"


@fault("stop-4", owns="w{worker}", seconds=4.0)
@fault("stop-15", owns="w{worker}", seconds=15.0)
def _stop(stage: Stage, fault: Fault, blow: Blow, seconds: float) -> None:
    _strike(stage, fault, blow)
    pids = _container(stage, blow)
    _signal(blow, pids, signal.SIGSTOP)
    stage.wait(seconds)
    _signal(blow, pids, signal.SIGCONT)


@fault("wedge", owns="w{worker}", seconds=16.0)
def _wedge(stage: Stage, fault: Fault, blow: Blow, seconds: float) -> None:
    """Let its event loop stand for longer than ``poison_stuck_after``."""
    worker = _strike(stage, fault, blow)
    try:
        to, more = [worker.hostname], {"seconds": seconds}
        stage.app.control.broadcast("wedge", more, destination=to, reply=False)
    except Exception as error:  # the broker is away
        blow.note = f"it could not be asked to: {error!r}"
        return
    stage.wait(seconds + 2.0)


@fault("warm", owns="w{worker}", how=signal.SIGTERM)
@fault("cold", owns="w{worker}", how=signal.SIGQUIT)
def _leave(stage: Stage, fault: Fault, blow: Blow, how: signal.Signals) -> None:
    """Ask a worker to go; who takes more than 30 s is killed, as by systemd."""
    worker = _strike(stage, fault, blow)
    worker.send_signal(how)
    deadline = time.monotonic() + 30.0
    while worker.is_alive() and time.monotonic() < deadline and not stage.stopping.is_set():
        stage.wait(0.1)
    if worker.is_alive():
        blow.note = f"{blow.lives[0]} was killed when it had not left"
        worker.kill_group()


@fault("deploy", owns="deploy")
def _deploy(stage: Stage, fault: Fault, blow: Blow) -> None:
    lives: tuple[str, ...] = ()
    for number in stage.numbers:
        _leave(stage, replace(fault, worker=number), blow, signal.SIGTERM)
        lives = blow.lives = (*lives, *blow.lives)
        stage.wait(1.0)


@fault("clock", owns="clock{worker}")
def _clock(stage: Stage, fault: Fault, blow: Blow) -> None:
    """Move its clock by up to an hour, forth or back; what it had before comes back by another jump."""
    _strike(stage, fault, blow)
    set_clock(stage.clocks[fault.worker], (fault.dice - 0.5) * 7200.0)
    stage.wait(10.0)
    set_clock(stage.clocks[fault.worker], 0.0)


@fault("disk-full", owns="disk")
def _disk_full(stage: Stage, fault: Fault, blow: Blow) -> None:
    """Fill the file system on which all workers have their temporary files."""
    with filled(stage.temporary):
        stage.wait(8.0)


# --- the network between one worker and its servers is cut, silent or slow --------------------------------


@fault("net-drop", owns="net{worker}", brokers=ONE_REDIS, spoil=TcpProxy.drop_connections, seconds=0.0)
@fault("net-cut-5", owns="net{worker}", brokers=ONE_REDIS, spoil=TcpProxy.cut, seconds=5.0)
@fault("net-cut-15", owns="net{worker}", brokers=ONE_REDIS, spoil=TcpProxy.cut, seconds=15.0)
@fault("net-freeze-4", owns="net{worker}", brokers=ONE_REDIS, spoil=TcpProxy.freeze, seconds=4.0)
@fault("net-freeze-15", owns="net{worker}", brokers=ONE_REDIS, spoil=TcpProxy.freeze, seconds=15.0)
@fault("net-slow", owns="net{worker}", brokers=ONE_REDIS, spoil=TcpProxy.slow_down, seconds=8.0)
def _network(
    stage: Stage, fault: Fault, blow: Blow, spoil: Callable[[TcpProxy], None], seconds: float
) -> None:
    _strike(stage, fault, blow)
    for proxy in stage.proxies[fault.worker]:
        spoil(proxy)
    stage.wait(seconds)
    for proxy in stage.proxies[fault.worker]:
        proxy.heal()


@fault("net-half-open", owns="net{worker}", brokers=ONE_REDIS)
def _half_open(stage: Stage, fault: Fault, blow: Blow) -> None:
    """Strand its connections: nobody closes them, and new ones work. At last its kernel gives them up."""
    _strike(stage, fault, blow)
    for proxy in stage.proxies[fault.worker]:
        proxy.strand()
    stage.wait(20.0)
    for proxy in stage.proxies[fault.worker]:
        proxy.drop_connections()


# --- a message comes that kills whoever runs it -----------------------------------------------------------

PREFIX = "poison-"


def _send(stage: Stage, fault: Fault, blow: Blow) -> None:
    blow.note = stage.load.send_poison(fault.name.removeprefix(PREFIX))


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


@fault("redis-pause", owns="redis", brokers=ONE_REDIS, server="redis", least=1.0)
@fault("rabbit-pause", owns="rabbit", brokers=("rabbitmq",), server="rabbit", least=2.0)
def _pause(stage: Stage, fault: Fault, blow: Blow, server: str, least: float) -> None:
    paused = getattr(stage, server)
    paused.pause()
    stage.wait(least + 4.0 * fault.dice)
    paused.resume()


@fault("redis-kill", owns="redis", brokers=ONE_REDIS, seconds=0.0)
@fault("redis-down", owns="redis", brokers=ONE_REDIS, seconds=5.0)
def _kill(stage: Stage, fault: Fault, blow: Blow, seconds: float) -> None:
    stage.redis.kill()
    stage.wait(seconds)
    _start(stage)


@fault("redis-lost-second", owns="redis", brokers=ONE_REDIS)
def _lost_second(stage: Stage, fault: Fault, blow: Blow) -> None:
    """What a machine's crash leaves of ``appendfsync everysec``: all but the last second."""
    parked = _parked(stage)
    files = stage.redis_data / "appendonlydir"
    sizes = {path: path.stat().st_size for path in files.glob("*.incr.aof")}
    stage.wait(1.0)
    blow.gone = tuple(sorted(_parked(stage) - parked))
    stage.redis.kill()
    for path in files.glob("*.incr.aof"):  # one that has been rewritten meanwhile is whole
        if path in sizes:
            os.truncate(path, sizes[path])
    _start(stage)


def _await_redis(stage: Stage) -> None:
    with contextlib.suppress(AssertionError):  # it may be loading what another fault has left of it
        wait_until(lambda: stage.stopping.is_set() or stage.redis_answers(), timeout=30)


def _parked(stage: Stage) -> set[str]:
    _await_redis(stage)
    with stage.ledger.client(decode_responses=False) as client:
        bodies: Any = client.hvals(Keys().parcels)
    return {id.decode() for body in bodies for id in _TASK_ID.findall(body)}


@fault("redis-empty", owns="redis")
def _empty(stage: Stage, fault: Fault, blow: Blow) -> None:
    _await_redis(stage)
    with stage.redis.client(decode_responses=False) as client:
        there = client.eval(_TAKE_AND_EMPTY, 0, Keys().parcels)
    # Also what is being sent at this moment: its sender does not know yet that it has arrived.
    blow.gone = tuple(sorted({id.decode() for id in _TASK_ID.findall(there)}))


@fault("redis-full", owns="redis", brokers=ONE_REDIS)
def _full(stage: Stage, fault: Fault, blow: Blow) -> None:
    """Fill the file system of the append-only file: Redis gives up, and is started when there is room."""
    with filled(stage.redis_data):
        with contextlib.suppress(AssertionError):
            wait_until(lambda: stage.stopping.is_set() or not stage.redis_answers(), timeout=10)
        stage.redis.kill()
    _start(stage)


@fault("redis-failover", owns="redis", brokers=("sentinel",), kill=True)
@fault("redis-switch", owns="redis", brokers=("sentinel",), kill=False)
def _failover(stage: Stage, fault: Fault, blow: Blow, kill: bool) -> None:
    """The replica takes over, and the master becomes its replica: after its death, or after more writes."""
    stage.sentinel.fail_over(kill=kill)
    if kill:
        stage.sentinel.replica.start()
    stage.sentinel.wait_whole()


@fault("reshard", owns="cluster", ledgers=("cluster",))
def _reshard(stage: Stage, fault: Fault, blow: Blow) -> None:
    """The ledger's slot moves to another master, key by key, with enough beside it to take a while."""
    with stage.cluster.filled(10_000):
        stage.cluster.move()


@fault("failover", owns="cluster", ledgers=("cluster",))
def _owner_dies(stage: Stage, fault: Fault, blow: Blow) -> None:
    """The owner of the ledger's slot is killed, its replica takes over, and it comes back as that one's."""
    stage.cluster.lose_owner().start()
    stage.cluster.wait_whole()


@fault("other-master", owns="cluster", ledgers=("cluster",))
def _other_dies(stage: Stage, fault: Fault, blow: Blow) -> None:
    """The same happens to a master that has nothing of the ledger."""
    stage.cluster.lose_another().start()
    stage.cluster.wait_whole()


@fault("rabbit-kill", owns="rabbit", brokers=("rabbitmq",))
def _rabbit_kill(stage: Stage, fault: Fault, blow: Blow) -> None:
    stage.rabbit.kill()
    stage.rabbit.start()


@fault("rabbit-close", owns="rabbit", brokers=("rabbitmq",))
def _rabbit_close(stage: Stage, fault: Fault, blow: Blow) -> None:
    stage.rabbit.ctl("close_all_connections", "chaos")


def _start(stage: Stage) -> None:
    # A client that tries to connect may happen to have its port for a moment.
    def started() -> bool:
        with contextlib.suppress(RuntimeError):
            stage.redis.start()
            return True
        return False

    wait_until(started, what="Redis starts again", interval=0.2)
