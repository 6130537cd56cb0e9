"""celery_poison: one bad message no longer takes the fleet down.

The life of a message, in reading order: ``plugin`` stamps it when it is sent; ``broker`` receives it and
``worker`` lets it in, records its start and end, and blames a dead pool process; ``failover`` notices a
dead worker and puts its messages back; ``quarantine`` holds what was convicted until a person releases
or fails it. ``decide`` judges, ``ledger`` remembers. ``extensions`` hang on all that by hooks.
``docs/where-is-it.md`` says where what is done.
"""

# Celery makes a caller's exception of a module only if that is imported: whoever imports this reads GivenUp.
from celery_poison.errors import GivenUp

TYPE_CHECKING = False  # `typing` itself takes longer to import than a probe may take
if TYPE_CHECKING:
    from celery_poison.desk import Quarantine
    from celery_poison.guard import guarded, install
    from celery_poison.policy import Policy
    from celery_poison.states import State
    from celery_poison.task import PoisonTask

__all__ = ["GivenUp", "PoisonTask", "Policy", "Quarantine", "State", "guarded", "install"]

#: Loaded when it is asked for: who only publishes needs no quarantine, and `celery_poison.alive` no Celery.
_PLACES = {
    "PoisonTask": "task",
    "Policy": "policy",
    "Quarantine": "quarantine",
    "State": "states",
    "guarded": "guard",
    "install": "guard",
}


def __getattr__(name: str) -> object:
    from importlib import import_module
    from importlib.util import find_spec

    if name not in _PLACES:
        # An app that writes `celery_poison.signals` may have imported this alone.
        if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")

    import_module(f"{__name__}.guard")  # marks what an app makes before it is finalized, by whatever name
    value = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
