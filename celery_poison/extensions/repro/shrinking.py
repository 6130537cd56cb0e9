"""Makes the arguments of a call smaller, as long as the task still dies of them: delta debugging (NEW-21)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Spent(Exception):
    """As many attempts were made as were allowed."""


def shrink(value: Any, dies: Callable[[Any], bool]) -> Any:
    """Return the smallest value found that still kills the task.

    Args:
        value: JSON that kills the task.
        dies: whether it dies of another; raises ``Spent`` when it may not be asked any more.
    """
    try:
        while True:
            for smaller in smaller_than(value):
                if dies(smaller):
                    value = smaller
                    break
            else:
                return value
    except Spent:
        return value


def smaller_than(value: Any) -> Iterator[Any]:
    """Yield smaller values of JSON, those that differ most first."""
    if isinstance(value, (list, str)):
        yield from _without_parts(value)
    if isinstance(value, list):
        for number, each in enumerate(value):
            for smaller in smaller_than(each):
                yield [*value[:number], smaller, *value[number + 1 :]]
    if isinstance(value, dict):
        yield from ({name: each for name, each in value.items() if name != key} for key in value)
        for key, each in value.items():
            yield from (value | {key: smaller} for smaller in smaller_than(each))
    if type(value) in (int, float) and value:
        yield from (
            smaller
            for smaller in (0, abs(int(value)) // 2 * (1 if value > 0 else -1))
            if abs(smaller) < abs(value)
        )


def _without_parts(value: Any) -> Iterator[Any]:
    """Yield a list or a text without each of its halves, its quarters, and so on."""
    part = len(value)
    while part:
        for begin in range(0, len(value), part):
            yield value[:begin] + value[begin + part :]
        part = part // 2
