"""What one task tolerates: the policy settings of its app, overridden by the task's own options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from celery_poison.errors import ConfigurationError
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
    """

    max_crashes: int = 2
    max_failures: int = 5
    max_payload_bytes: int | None = None
    fingerprint: Callable[..., Any] | None = None
    block_fingerprint_after: int | None = None

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
