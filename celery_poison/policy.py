"""What one task tolerates: the settings of its app, its own options, and what was overridden at run time.

Overrides are in Redis (EMS-9): they are read with suspicion, and laid over the code.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from celery_poison.decide import Failing, failing
from celery_poison.errors import ConfigurationError
from celery_poison.failures import kinds_of, name_of
from celery_poison.settings import PREFIX, Settings, did_you_mean

#: Options that can be overridden at run time: those that are plain data.
OVERRIDABLE = ("max_crashes", "max_failures", "max_payload_bytes", "block_fingerprint_after")

_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits of one task. Every field is also an option of ``guarded(...)`` and a task attribute.

    Attributes:
        max_crashes: deaths attributed to a message before quarantine (SAP-3); default 2.
        max_failures: times a message may be put back before quarantine (WAS-3); default 5.
        max_payload_bytes: largest body accepted, as received (SAP-6); default no limit.
        fingerprint: function of the task's arguments whose result tells equal messages (NEW-3).
        block_fingerprint_after: convictions of one fingerprint after which new messages bearing it are
            quarantined on arrival (NEW-3); default never.
        keep_failures: keep in quarantine what failed with an exception (NEW-10); default no.
        ignore: exceptions that are left alone all the same, as classes or dotted names; default none.
        convict_at_once: exceptions that are neither retried nor left alone; default none.
    """

    max_crashes: int = 2
    max_failures: int = 5
    max_payload_bytes: int | None = None
    fingerprint: Callable[..., Any] | None = None
    block_fingerprint_after: int | None = None
    keep_failures: bool = False
    ignore: Collection[type[Exception] | str] = ()
    convict_at_once: Collection[type[Exception] | str] = ()

    def failing(self, error: BaseException) -> Failing:
        """Decide what is done about an exception that the task raised."""
        return failing(
            kinds_of(error),
            keep=self.keep_failures,
            ignore={*map(name_of, self.ignore)},
            convict_at_once={*map(name_of, self.convict_at_once)},
        )

    @property
    def looks_at_failures(self) -> bool:
        return bool(self.keep_failures or self.convict_at_once)

    @classmethod
    def option_names(cls) -> list[str]:
        return [f.name for f in fields(cls)]

    @classmethod
    def of(cls, task: object, settings: Settings, overrides: Mapping[str, Any] = _NONE) -> Self:
        """Return the policy of ``task``: ``overrides``, else its own attributes, else the app's settings.

        Args:
            overrides: options that somebody changed at run time, checked already (EMS-9).

        Raises:
            ConfigurationError: a task attribute has an impossible value.
        """
        own = own_options(task)
        check_options(own, where=f"task {getattr(task, 'name', task)!r}")
        found = {name: getattr(settings, name) for name in cls.option_names()}
        return cls(**{**found, **own, **overrides})


def own_options(task: object) -> dict[str, Any]:
    """Return the policy options that the code gives to ``task`` itself."""
    return {name: value for name in Policy.option_names() if (value := _own(task, name)) is not None}


def check_options(options: Mapping[str, Any], where: str, names: Sequence[str] = ()) -> None:
    """Check the names and values of policy options.

    Args:
        names: those that are allowed; default all.

    Raises:
        ConfigurationError: unknown option or impossible value; names ``where`` it was given.
    """
    names = names or Policy.option_names()
    for name in options:
        if name not in names:
            raise ConfigurationError(f"{where}: unknown option {name}{did_you_mean(name, names)}")
    try:
        Settings.from_conf({PREFIX + name: value for name, value in options.items()})
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {str(error).removeprefix(PREFIX)}") from None


def _own(task: object, name: str) -> Any:
    # A function given as a class attribute would otherwise come back bound to the task.
    value = inspect.getattr_static(task, name, None)
    return value.__func__ if isinstance(value, staticmethod) else value


# --- overridden at run time -----------------------------------------------------------------------

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
