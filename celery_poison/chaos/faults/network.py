"""The network between one worker and its servers is cut, silent or slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_poison.chaos.faults.kind import ONE_REDIS, fault
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.runs import Blow

if TYPE_CHECKING:
    from celery_poison.chaos.torment import Torment

#: Seconds that every packet of a slow network takes more.
DELAY = 0.1


@fault("net-drop", owns="net{worker}", brokers=ONE_REDIS)
def _drop(torment: Torment, fault: Fault, blow: Blow) -> None:
    """All its connections end; new ones are welcome."""
    _strikes(torment, fault, blow)
    for proxy in torment.stage.proxies(fault.worker):
        proxy.drop_connections()


@fault("net-cut-5", owns="net{worker}", brokers=ONE_REDIS)
def _cut_shortly(torment: Torment, fault: Fault, blow: Blow) -> None:
    _cut(torment, fault, blow, 5.0)


@fault("net-cut-15", owns="net{worker}", brokers=ONE_REDIS)
def _cut_for_long(torment: Torment, fault: Fault, blow: Blow) -> None:
    _cut(torment, fault, blow, 15.0)


def _cut(torment: Torment, fault: Fault, blow: Blow, seconds: float) -> None:
    """All its connections end, and new ones are refused."""
    _strikes(torment, fault, blow)
    for proxy in torment.stage.proxies(fault.worker):
        proxy.cut()
    torment.stage.wait(seconds)
    _heal(torment, fault)


@fault("net-freeze-4", owns="net{worker}", brokers=ONE_REDIS)
def _freeze_shortly(torment: Torment, fault: Fault, blow: Blow) -> None:
    _freeze(torment, fault, blow, 4.0)


@fault("net-freeze-15", owns="net{worker}", brokers=ONE_REDIS)
def _freeze_for_long(torment: Torment, fault: Fault, blow: Blow) -> None:
    _freeze(torment, fault, blow, 15.0)


def _freeze(torment: Torment, fault: Fault, blow: Blow, seconds: float) -> None:
    """Its connections stay, and nothing comes through."""
    _strikes(torment, fault, blow)
    for proxy in torment.stage.proxies(fault.worker):
        proxy.freeze()
    torment.stage.wait(seconds)
    _heal(torment, fault)


@fault("net-slow", owns="net{worker}", brokers=ONE_REDIS)
def _slow(torment: Torment, fault: Fault, blow: Blow) -> None:
    _strikes(torment, fault, blow)
    for proxy in torment.stage.proxies(fault.worker):
        proxy.slow_down(DELAY)
    torment.stage.wait(8.0)
    for proxy in torment.stage.proxies(fault.worker):
        proxy.slow_down(0.0)


def _strikes(torment: Torment, fault: Fault, blow: Blow) -> None:
    blow.lives = (torment.stage.present(fault.worker)[0],)


def _heal(torment: Torment, fault: Fault) -> None:
    for proxy in torment.stage.proxies(fault.worker):
        proxy.heal()
