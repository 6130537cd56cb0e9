"""Calls hooks, which may fail: the task goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar, TypeVarTuple

from celery_poison.errors import LedgerUnavailable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Complain = Callable[[Exception], object]


def gather(hooks: Iterable[Callable[[*Ts], Iterable[T]]], complain: Complain, *args: *Ts) -> list[T]:
    """Return the values of the hooks, in their order; one that raises is complained of and adds nothing.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    results: list[T] = []
    for hook in hooks:
        try:
            results += [*hook(*args)]
        except LedgerUnavailable:
            raise
        except Exception as error:
            complain(error)
    return results


def first(hooks: Iterable[Callable[[*Ts], T | None]], complain: Complain, *args: *Ts) -> T | None:
    """Return the first answer that is not None; a hook that raises is complained of, and has none."""
    for hook in hooks:
        try:
            if (answer := hook(*args)) is not None:
                return answer
        except Exception as error:
            complain(error)
    return None


def tell(hooks: Iterable[Callable[[*Ts], object]], complain: Complain, *args: *Ts) -> None:
    """Call the hooks, in their order; one that raises is complained of, but a ledger that is away is not."""
    for hook in hooks:
        try:
            hook(*args)
        except LedgerUnavailable:
            raise
        except Exception as error:
            complain(error)


def amend(hooks: Iterable[Callable[[T, *Ts], T]], complain: Complain, value: T, *args: *Ts) -> T:
    """Pass a value through the hooks, one after the other; one that raises leaves it as it is."""
    for hook in hooks:
        try:
            value = hook(value, *args)
        except LedgerUnavailable:
            raise
        except Exception as error:
            complain(error)
    return value


@contextmanager
def within(managers: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    """Enter what hooks stand around a step with, in their order."""
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield
