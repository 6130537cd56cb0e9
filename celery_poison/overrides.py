"""Policies overridden at run time, as Redis keeps them: read with suspicion, laid over the code (EMS-9)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from celery_poison.errors import ConfigurationError
from celery_poison.policy import OVERRIDABLE, check_options

#: In the place of a task name: every guarded task.
EVERY_TASK = "*"


@dataclass(frozen=True, slots=True)
class Overrides:
    """All overrides of one version, checked.

    Attributes:
        version: raised by every change; 0: nobody ever changed anything.
        by_task: task name, or ``*``, -> its options.
    """

    version: int = 0
    by_task: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, version: int, raw: Mapping[str, str | bytes]) -> tuple[Self, list[ConfigurationError]]:
        """Return what is usable of ``raw`` (task name -> JSON object), and why the rest is not.

        Each option is judged by itself: a newer version may know options that this one does not.
        """
        complaints: list[ConfigurationError] = []
        by_task = {}
        for task, text in raw.items():
            options, wrong = _usable(task, text)
            complaints += wrong
            if options:
                by_task[task] = options
        return cls(version, by_task), complaints

    def of(self, task: str) -> dict[str, Any]:
        """Return the overridden options of ``task``: its own override goes before that of every task."""
        return {**self.by_task.get(EVERY_TASK, {}), **self.by_task.get(task, {})}

    def origin(self, task: str, option: str) -> str | None:
        """Return whose override of ``option`` holds for ``task``: the task, ``*``, or None."""
        holders = (name for name in (task, EVERY_TASK) if option in self.by_task.get(name, {}))
        return next(holders, None)


def check_override(task: str, options: Mapping[str, Any]) -> None:
    """Check options by which somebody wants to override the policy of ``task``.

    Raises:
        ConfigurationError: unknown option or impossible value.
    """
    check_options(options, where=f"policy of {task}", names=OVERRIDABLE)


def entry_of(text: str | bytes | None) -> dict[str, Any]:
    """Return one stored override, unchecked; empty if there is none or it is no JSON object."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _usable(task: str, text: str | bytes) -> tuple[dict[str, Any], list[ConfigurationError]]:
    entry = entry_of(text)
    if not entry:
        wrong = ConfigurationError(f"policy of {task} in Redis is ignored: it is no JSON object of options")
        return {}, [wrong]
    complaints = dict(_complaints(task, entry))
    return {name: value for name, value in entry.items() if name not in complaints}, [*complaints.values()]


def _complaints(task: str, entry: Mapping[str, Any]) -> Iterator[tuple[str, ConfigurationError]]:
    for name, value in entry.items():
        try:
            check_options({name: value}, f"policy of {task} in Redis, {name} is ignored", OVERRIDABLE)
        except ConfigurationError as error:
            yield name, error
