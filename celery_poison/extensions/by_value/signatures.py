"""The parameters of a task, as far as they are known."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

_VAR = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one task.

    Attributes:
        places: name -> position, of those that may be given by it.
        defaults: name -> value where a call does not give it.
        names: all that have one.
        is_open: it takes other names, too, or nothing is known of it.
    """

    places: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Collection[str] = ()
    is_open: bool = True

    def takes(self, name: str) -> bool:
        """Whether a call may give an argument of this name."""
        return self.is_open or name in self.names


def parameters_of(app: Celery, task: str) -> Parameters:
    """Return the parameters of a task of this app; of one that is not known, any name may be given."""
    try:
        parameters = inspect.signature(app.tasks[task].run).parameters
    except (KeyError, TypeError, ValueError):
        return Parameters()
    places, defaults = dict[str, int](), dict[str, Any]()
    for place, (name, each) in enumerate(parameters.items()):
        if each.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            places[name] = place
        if each.default is not inspect.Parameter.empty:
            defaults[name] = each.default
    kinds = {each.kind for each in parameters.values()}
    names = [name for name, each in parameters.items() if each.kind not in _VAR]
    return Parameters(places, defaults, names, inspect.Parameter.VAR_KEYWORD in kinds)
