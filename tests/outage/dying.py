"""Kill a worker's main process where it calls a function of the plugin's, once in a fleet."""

from __future__ import annotations

import functools
import importlib
import os
import signal
from typing import Any

from tests.apps.marks import marks

#: Environment of a worker: ``module:function``, ``module:Class.method``; then ``#2`` for the second call.
DIES_AT = "POISON_TEST_DIES_AT"


def die_where_told() -> None:
    """Replace that function, if one is named."""
    if not (place := os.environ.get(DIES_AT)):
        return
    path, _, number = place.partition("#")
    module, _, names = path.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = names.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    call, calls, main = getattr(owner, name), [0], os.getpid()

    @functools.wraps(call)
    def dying(*args: Any, **kwargs: Any) -> Any:
        calls[0] += os.getpid() == main
        if calls[0] == int(number or 1) and marks(os.environ["MARKS_URL"]).lock("dies", 3600.0):
            marks(os.environ["MARKS_URL"]).leave("worker", "", "dies")
            os.kill(main, signal.SIGKILL)
        return call(*args, **kwargs)

    setattr(owner, name, dying)
