"""Features that hang on the core by its hooks (``celery_poison.extension``), each in a room of its own.

A room has all that its feature needs: code, Lua, notes in the ledger. The core and the quarantine import none
of them; the command line may, and Flower loads their pages. Without any of them the core does its work.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from celery_poison.extension import Extension

#: The rooms, in the order in which their hooks are called.
ORDER: tuple[str, ...] = (
    *("outbox", "once", "limits", "error_transactions", "notify", "proposals", "holds", "deploy_guard"),
    *("by_value", "black_box", "items", "telling", "repro", "rollout", "cost"),
)


def load(host: Any) -> tuple[Extension, ...]:
    """Return all extensions of one app, in their order."""
    return tuple(import_module(f"{__name__}.{name}").EXTENSION(host) for name in ORDER)
