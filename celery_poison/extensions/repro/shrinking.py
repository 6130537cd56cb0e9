"""Makes the arguments of a call smaller, as long as the task still dies of them: delta debugging (NEW-21)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

#: Yields a smaller value, is sent whether the task dies of it, and returns the smallest.
Search = Generator[Any, bool, Any]


class Spent(Exception):
    """As many attempts were made as were allowed."""


class Shrunk(NamedTuple):
    """The smallest value found.

    Attributes:
        is_minimal: the task dies of nothing that is one step smaller; False where the attempts were spent.
    """

    value: Any
    is_minimal: bool


def shrink(value: Any, dies: Callable[[Any], bool]) -> Shrunk:
    """Return the smallest value found that still kills the task.

    Args:
        value: JSON that kills the task.
        dies: whether it dies of another; raises ``Spent`` when it may not be asked any more.
    """
    smallest = value

    def asked(smaller: Any) -> bool:
        nonlocal smallest
        if does_die := dies(smaller):
            smallest = smaller
        return does_die

    try:
        while True:
            before = smallest
            _run(_smaller(smallest), asked)
            if smallest == before:
                return Shrunk(smallest, is_minimal=True)
    except Spent:
        return Shrunk(smallest, is_minimal=False)


def _run(search: Search, dies: Callable[[Any], bool]) -> None:
    try:
        smaller = next(search)
        while True:
            smaller = search.send(dies(smaller))
    except StopIteration:
        return


def _smaller(value: Any) -> Search:
    """Search among smaller values of JSON, those that differ most first."""
    if isinstance(value, (list, str)):
        value = yield from _fewer_parts(value)
    if isinstance(value, dict):
        value = yield from _fewer_keys(value)
    if isinstance(value, (list, dict)):
        for at in range(len(value)) if isinstance(value, list) else tuple(value):
            value = yield from _smaller_within(value, at)
    if type(value) in (int, float):
        value = yield from _nearer_to_zero(value)
    return value


def _fewer_parts(value: Any) -> Search:
    """Leave parts of a list or a text out: all of it, halves, quarters, and so on.

    The size of a part stays after a success: what was tried with larger parts would fail again.
    """
    size = len(value)
    while size:
        begin = 0
        while begin < len(value):
            smaller = value[:begin] + value[begin + size :]
            if (yield smaller):
                value = smaller
            else:
                begin += size
        size //= 2
    return value


def _fewer_keys(value: dict[Any, Any]) -> Search:
    if value and (yield {}):
        return {}
    for key in tuple(value):
        smaller = {name: each for name, each in value.items() if name != key}
        if (yield smaller):
            value = smaller
    return value


def _smaller_within(value: Any, at: Any) -> Search:
    """Search among smaller values of one item of a list or a mapping."""
    search = _smaller(value[at])
    try:
        item = next(search)
        while True:
            item = search.send((yield _with_item(value, at, item)))
    except StopIteration as end:
        return _with_item(value, at, end.value)


def _with_item(value: Any, at: Any, item: Any) -> Any:
    return value | {at: item} if isinstance(value, dict) else [*value[:at], item, *value[at + 1 :]]


def _nearer_to_zero(value: float) -> Search:
    while value:
        for smaller in (0, abs(int(value)) // 2 * (1 if value > 0 else -1)):
            if abs(smaller) < abs(value) and (yield smaller):
                value = smaller
                break
        else:
            break
    return value
