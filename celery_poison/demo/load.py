"""What is sent, and in which order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from celery import Celery

from celery_poison.demo import tasks
from celery_poison.demo.poisons import BOMB, POISONS, Poison


@dataclass(frozen=True, slots=True)
class Load:
    """The task ids of everything that was sent: of the healthy by number, of the poison by name."""

    healthy: dict[int, str] = field(default_factory=dict)
    poison: dict[str, str] = field(default_factory=dict)


def plan(healthy: int, seed: int) -> list[int | Poison]:
    """Return the order of sending: the healthy by number, each poison at a random place among them."""
    order: list[int | Poison] = list(range(healthy))
    chance = random.Random(seed)
    for poison in chance.sample(POISONS, len(POISONS)):
        order.insert(chance.randint(0, len(order)), poison)
    return order


def send(app: Celery, order: list[int | Poison]) -> Load:
    """Send everything in this order, as any producer would."""
    load = Load()
    with app.producer_pool.acquire(block=True) as producer:
        for item in order:
            if isinstance(item, int):
                task = app.tasks[tasks.HEALTHY]
                load.healthy[item] = task.apply_async((item,), producer=producer).id
            else:
                task = app.tasks[tasks.task_name(item)]
                serializer = tasks.SERIALIZER if item is BOMB else None
                load.poison[item.name] = task.apply_async(producer=producer, serializer=serializer).id
    return load
