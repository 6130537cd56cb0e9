"""Runs in which nothing happens, a day at a time, by whole columns: nothing here loops over rows."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from examples.histories.world import DAY_MS, TASKS, World

_DIE = 100_000
_HEX = pa.array([f"{n:04x}" for n in range(65_536)])
#: How busy each hour is.
_HOURS = (2, 1, 1, 1, 1, 2, 4, 7, 10, 12, 13, 13, 12, 12, 13, 12, 11, 10, 9, 8, 7, 6, 4, 3)


class Dice:
    """Columns of random numbers, a new one with each call, the same ones with the same seed."""

    def __init__(self, seed: int, rows: int) -> None:
        self._seed, self._rows = seed * 1_000, rows

    def unit(self) -> Any:
        self._seed += 1
        return pc.random(self._rows, initializer=self._seed)

    def below(self, bound: int | Any) -> Any:
        drawn = pc.floor(pc.multiply(self.unit(), pc.cast(bound, pa.float64())))
        return pc.cast(drawn, pa.int64(), safe=False)

    def spread(self, median: Any, sigma: float) -> Any:
        """Roughly log-normal: the sum of three dice is normal enough."""
        three = pc.add(pc.add(self.unit(), self.unit()), self.unit())
        z = pc.multiply(pc.subtract(three, 1.5), 2.0)
        drawn = pc.multiply(pc.cast(median, pa.float64()), pc.exp(pc.multiply(z, sigma)))
        return pc.cast(pc.floor(pc.add(drawn, 1.0)), pa.int64(), safe=False)

    def hex(self, quads: int) -> Any:
        parts = [pc.take(_HEX, self.below(65_536)) for _ in range(quads)]
        return pc.binary_join_element_wise(*parts, "")


def fingerprint(task: int, kind: int) -> str:
    """Return the fingerprint of a task's arguments number ``kind``, as :func:`day` makes it for all rows."""
    return f"{_salt(task)}{kind // 65_536:04x}{kind % 65_536:04x}{_salt(task + 100)}"


def day(world: World, number: int, rows: int) -> pa.Table:
    """Return the healthy runs that end on one day, by time."""
    dice = Dice(world.seed * 10_007 + number, rows)
    ends = _times(world, number, dice)
    task = pc.take(_weighted([t.share for t in TASKS]), dice.below(_DIE))
    release = pc.divide(
        pc.subtract(ends, world.start_ms), pa.scalar(world.deploy_every_days * DAY_MS, pa.int64())
    )
    node = dice.below(len(world.nodes))
    worker = _take(
        [world.incarnation(n, r) for r in range(len(world.releases)) for n in range(len(world.nodes))],
        pc.add(pc.multiply(release, len(world.nodes)), node),
    )
    kind = dice.below(1 << 30)
    kind = _modulo(kind, pc.take(pa.array([t.kinds for t in TASKS]), task))
    mid = dice.hex(8)
    odd = pc.less(dice.unit(), 0.1)
    shape = pc.if_else(
        odd, _take([t.shapes[1] for t in TASKS], task), _take([t.shapes[0] for t in TASKS], task)
    )
    columns = {
        "ms": ends,
        "event": _same("finished", rows),
        "id": mid,
        "mid": mid,
        "token": pc.binary_join_element_wise(
            pc.binary_slice(pc.cast(worker, pa.binary()), -8).cast(pa.string()), dice.hex(3), "."
        ),
        "task": _take([t.name for t in TASKS], task),
        "queue": _take([t.queue for t in TASKS], task),
        "worker": worker,
        "pid": pc.add(dice.below(world.slots), 400),
        "state": _same("DLVD", rows),
        "outcome": pc.take(_weighted_words({"success": 97, "failure": 2, "retry": 1}), dice.below(_DIE)),
        "deliveries": pc.add(pc.multiply(dice.below(1), 0), 1),
        "runtime_ms": dice.spread(_take([t.runtime_ms for t in TASKS], task), 1.0),
        "payload_bytes": dice.spread(_take([t.payload for t in TASKS], task), 0.8),
        "memory_kb": dice.spread(_take([90_000] * len(TASKS), task), 0.3),
        "fingerprint": pc.binary_join_element_wise(
            _take([_salt(n) for n in range(len(TASKS))], task),
            pc.take(_HEX, pc.divide(kind, 65_536)),
            pc.take(_HEX, _modulo(kind, 65_536)),
            _take([_salt(n + 100) for n in range(len(TASKS))], task),
            "",
        ),
        "shape": shape,
        "release": _take(world.releases, release),
    }
    sent = pc.add(columns["runtime_ms"], dice.spread(_take([400] * len(TASKS), task), 1.0))
    columns["enqueued_at"] = pc.subtract(ends, sent)
    # As of troubles: the larger the message, the more it needs.
    columns["run_memory_kb"] = dice.spread(pc.add(pc.divide(columns["payload_bytes"], 200), 60_000), 0.2)
    return pa.table(columns)


def _times(world: World, number: int, dice: Dice) -> Any:
    hour = pc.take(_weighted(_HOURS), dice.below(_DIE))
    within = dice.below(3_600_000)
    start = world.start_ms + number * DAY_MS
    drawn = pc.add(pc.add(pc.multiply(hour, 3_600_000), within), start)
    return pc.take(drawn, pc.sort_indices(drawn))


def _weighted(weights: Any) -> pa.Array:
    """Return numbers 0..n-1, each as often as its weight, to be drawn from by a die of ``_DIE`` sides."""
    total, drawn, sides = sum(weights), 0.0, []
    for number, weight in enumerate(weights):
        drawn += weight / total * _DIE
        sides += [number] * (round(drawn) - len(sides))
    return pa.array(sides, pa.int64())


def _weighted_words(weights: dict[str, int]) -> pa.Array:
    return pa.array(list(weights)).take(_weighted(list(weights.values())))


def _take(values: list[Any], index: Any) -> Any:
    return pc.take(pa.array(values), index)


def _same(word: str, rows: int) -> pa.Array:
    return pa.repeat(word, rows)


def _modulo(number: Any, divisor: Any) -> Any:
    return pc.subtract(number, pc.multiply(pc.divide(number, divisor), divisor))


def _salt(number: int) -> str:
    return f"{math.floor(abs(math.sin(number + 1)) * 65_535):04x}"
