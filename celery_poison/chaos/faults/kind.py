"""What a fault is, and the list of all there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from celery_poison.chaos.plan import Fault
    from celery_poison.chaos.runs import Blow
    from celery_poison.chaos.torment import Torment

Do = Callable[["Torment", "Fault", "Blow"], None]

EVERY_BROKER = ("redis", "sentinel", "rabbitmq")
#: On a Redis that does not fail over by itself as soon as it does not answer.
ONE_REDIS = ("redis", "rabbitmq")
EVERY_POOL = ("prefork", "threads", "gevent", "solo")


class Kind(NamedTuple):
    """A kind of fault.

    ``owns`` names what no other fault may touch meanwhile, with ``{worker}`` for the number of the one
    it strikes; empty for nothing. ``brokers`` and ``pools``: where there is such a thing.
    """

    do: Do
    owns: str
    brokers: tuple[str, ...]
    pools: tuple[str, ...]


KINDS: dict[str, Kind] = {}


def fault(
    name: str,
    owns: str = "",
    brokers: tuple[str, ...] = EVERY_BROKER,
    pools: tuple[str, ...] = EVERY_POOL,
) -> Callable[[Do], Do]:
    """Enter a function into the list."""

    def enter(do: Do) -> Do:
        KINDS[name] = Kind(do, owns, brokers, pools)
        return do

    return enter


#: Who may not mount a small file system cannot fill one.
NEED_A_DISK = ("disk-full", "redis-full")


def possible(pool: str, broker: str) -> list[str]:
    """Return the names of all faults that there are with such a fleet."""
    return [name for name, kind in KINDS.items() if pool in kind.pools and broker in kind.brokers]
