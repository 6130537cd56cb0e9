"""What a fleet is sent and what befalls it: one script, for real workers and for simulated ones alike."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

#: ``innocent`` never kills; ``poison`` kills in every run; ``sometimes`` in every second run.
Kind = Literal["innocent", "poison", "sometimes"]
#: How often a message of each kind kills the process it runs in.
DEADLINESS: dict[Kind, float] = {"innocent": 0.0, "poison": 1.0, "sometimes": 0.5}


@dataclass(frozen=True, slots=True)
class World:
    """A fleet and its load.

    Attributes:
        workers, slots: of the fleet.
        short, long: messages per second of either length.
        short_s, long_s: shortest and longest run time, in seconds.
        burst: messages that come at once, every ``burst_every`` seconds.
        poison_every, sometimes_every, kill_every, deploy_every: mean seconds between two; 0: never.
        several: share of the poisons that do not come alone, but three at once.
    """

    name: str
    workers: int = 4
    slots: int = 4
    short: float = 6.0
    long: float = 4.0
    short_s: tuple[float, float] = (0.01, 0.05)
    long_s: tuple[float, float] = (0.5, 2.0)
    burst: int = 24
    burst_every: float = 10.0
    poison_every: float = 7.0
    sometimes_every: float = 30.0
    several: float = 0.1
    kill_every: float = 10.0
    deploy_every: float = 240.0


#: The first one is also played to real workers; the last one has tasks of a minute.
WORLDS = (
    World("mixed"),
    World(
        "eight slots, long tasks",
        slots=8,
        short=1.0,
        long=6.0,
        long_s=(1.0, 4.0),
        poison_every=20.0,
        kill_every=30.0,
    ),
    World(
        "two workers of 64 greenlets",
        workers=2,
        slots=64,
        short=1.0,
        long=4.0,
        long_s=(1.0, 4.0),
        poison_every=60.0,
        sometimes_every=300.0,
        kill_every=60.0,
        deploy_every=900.0,
    ),
    World("spot instances, deploys", workers=6, poison_every=40.0, kill_every=10.0, deploy_every=60.0),
    World(
        "swarms of poison", workers=6, poison_every=12.0, several=0.5, sometimes_every=15.0, kill_every=60.0
    ),
    World(
        "spot fleets, tasks of a minute",
        workers=4,
        slots=50,
        short=0.0,
        long=2.0,
        long_s=(50.0, 70.0),
        burst=0,
        burst_every=0.0,
        poison_every=120.0,
        sometimes_every=600.0,
        kill_every=50.0,
        deploy_every=0.0,
    ),
)


@dataclass(frozen=True, slots=True)
class Send:
    at: float
    id: str
    kind: Kind
    seconds: float


@dataclass(frozen=True, slots=True)
class Kill:
    """Somebody from outside kills a whole worker."""

    at: float
    worker: int


@dataclass(frozen=True, slots=True)
class Deploy:
    """Every worker is told to end, one after the other, and is started again."""

    at: float


Event = Send | Kill | Deploy


def script(world: World, seed: int) -> Iterator[Event]:
    """Yield for ever what happens, by the time in seconds since the beginning."""
    streams = [
        _healthy(world, f"{seed}/short", world.short, world.short_s, "s"),
        _healthy(world, f"{seed}/long", world.long, world.long_s, "l"),
        _bursts(world, f"{seed}/burst"),
        _poison(world, f"{seed}/poison"),
        _sometimes(world, f"{seed}/sometimes"),
        _kills(world, f"{seed}/kill"),
        _deploys(world, f"{seed}/deploy"),
    ]
    return heapq.merge(*streams, key=lambda event: event.at)


def _times(dice: random.Random, every: float) -> Iterator[float]:
    at = 0.0
    while every:  # 0: never
        at += dice.expovariate(1 / every)
        yield at


def _healthy(world: World, seed: str, rate: float, length: tuple[float, float], mark: str) -> Iterator[Event]:
    dice = random.Random(seed)
    for number, at in enumerate(_times(dice, 1 / rate if rate else 0.0)):
        yield Send(at, f"{mark}{number}", "innocent", round(dice.uniform(*length), 3))


def _bursts(world: World, seed: str) -> Iterator[Event]:
    dice = random.Random(seed)
    for number, at in enumerate(_times(dice, world.burst_every)):
        for place in range(world.burst):
            yield Send(at, f"b{number}.{place}", "innocent", round(dice.uniform(*world.short_s) * 4, 3))


def _poison(world: World, seed: str) -> Iterator[Event]:
    dice = random.Random(seed)
    for number, at in enumerate(_times(dice, world.poison_every)):
        for place in range(3 if dice.random() < world.several else 1):
            yield Send(at, f"p{number}.{place}", "poison", round(dice.uniform(0.05, 1.0), 3))


def _sometimes(world: World, seed: str) -> Iterator[Event]:
    dice = random.Random(seed)
    for number, at in enumerate(_times(dice, world.sometimes_every)):
        yield Send(at, f"x{number}", "sometimes", round(dice.uniform(0.05, 1.0), 3))


def _kills(world: World, seed: str) -> Iterator[Event]:
    dice = random.Random(seed)
    for at in _times(dice, world.kill_every):
        yield Kill(at, dice.randrange(world.workers))


def _deploys(world: World, seed: str) -> Iterator[Event]:
    for at in _times(random.Random(seed), world.deploy_every):
        yield Deploy(at)
