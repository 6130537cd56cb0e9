"""celery_poison: one bad message no longer takes the fleet down.

The life of a message, in reading order: ``plugin`` stamps it when it is sent; ``broker`` receives it and
``worker`` lets it in, records its start and end, and blames a dead pool process; ``failover`` notices a
dead worker and puts its messages back; ``quarantine`` holds what was convicted until a person releases
or fails it. ``decide`` judges, ``ledger`` remembers. ``extensions`` hang on all that by hooks.
``docs/where-is-it.md`` says where what is done.
"""

from typing import TYPE_CHECKING, Any

from celery_poison.errors import GivenUp
from celery_poison.guard import guarded, install
from celery_poison.policy import Policy
from celery_poison.states import State
from celery_poison.task import PoisonTask

if TYPE_CHECKING:
    from celery_poison.quarantine import Quarantine

__all__ = ["GivenUp", "PoisonTask", "Policy", "Quarantine", "State", "guarded", "install"]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: programs that only publish, and every `celery` command, need none of it.
    if name == "Quarantine":
        from celery_poison.quarantine import Quarantine

        return Quarantine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
