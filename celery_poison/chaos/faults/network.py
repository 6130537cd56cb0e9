"""The network between one worker and its servers is cut, silent or slow."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery_poison.chaos.faults.kind import ONE_REDIS, fault
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.proxy import TcpProxy
from celery_poison.chaos.runs import Blow

if TYPE_CHECKING:
    from celery_poison.chaos.torment import Torment

#: Seconds that every packet of a slow network takes more.
DELAY = 0.1


@fault("net-drop", owns="net{worker}", brokers=ONE_REDIS)
def _drop(torment: Torment, fault: Fault, blow: Blow) -> None:
    """All its connections end; new ones are welcome."""
    for proxy in _struck(torment, fault, blow):
        proxy.drop_connections()


def _cut(torment: Torment, fault: Fault, blow: Blow, seconds: float) -> None:
    """All its connections end, and new ones are refused."""
    for proxy in _struck(torment, fault, blow):
        proxy.cut()
    _heal_after(torment, fault, seconds)


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


for _name, _do, _seconds in (
    ("net-cut-5", _cut, 5.0),
    ("net-cut-15", _cut, 15.0),
    ("net-freeze-4", _freeze, 4.0),
    ("net-freeze-15", _freeze, 15.0),
):
    fault(_name, owns="net{worker}", brokers=ONE_REDIS)(partial(_do, seconds=_seconds))
