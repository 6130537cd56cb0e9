"""Servers die, stand still, forget, fail over and run out of disk."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from celery_poison.chaos.faults.kind import ONE_REDIS, fault
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.runs import Blow
from celery_poison.ledger.keys import Keys
from celery_poison.testing import wait_until

if TYPE_CHECKING:
    from celery_poison.chaos.torment import Torment

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
    sizes = {path: path.stat().st_size for path in _append_only_files(torment)}
    torment.stage.wait(1.0)
    torment.stage.redis.kill()
    for path in _append_only_files(torment):
        # One that has been rewritten meanwhile is whole.
        if path in sizes:
            os.truncate(path, sizes[path])
    _start(torment)


@fault("redis-empty", owns="redis")
def _empty(torment: Torment, fault: Fault, blow: Blow) -> None:
    with torment.stage.redis.client(decode_responses=False) as client:
        there = client.eval(_TAKE_AND_EMPTY, 0, Keys().parcels)
    ids = {id.decode() for id in _TASK_ID.findall(there)}
    blow.gone = tuple(sorted(ids & {*torment.load.sent}))


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
