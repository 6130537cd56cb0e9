"""What the tasks of an app tolerate at this moment, and changing it at run time (EMS-9).

The command line and Flower share this class, as they share :class:`~celery_poison.quarantine.Quarantine`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from celery import Celery

from celery_poison.errors import ConfigurationError, MessageNotFound, PolicyConflict
from celery_poison.ledger import policies as stored
from celery_poison.ledger.queries import Queries
from celery_poison.overrides import EVERY_TASK, Overrides, check_override, entry_of
from celery_poison.plugin import plugin_of
from celery_poison.policy import OVERRIDABLE, Policy, own_options
from celery_poison.quarantine.owner import check_owner, default_actor
from celery_poison.settings import Settings
from celery_poison.task import PoisonTask

#: How often a change is tried again that others were faster than.
ATTEMPTS = 10

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """What one task tolerates.

    Attributes:
        task: its name; ``*`` is what was overridden for every task.
        values: option -> value; of ``*`` and of a task that this app does not guard, only what is overridden.
        origins: option -> where its value comes from: ``override``, ``override *``, ``code`` or ``setting``.
        guarded: whether this app guards such a task.
    """

    task: str
    values: Mapping[str, Any]
    origins: Mapping[str, str]
    guarded: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySheet:
    """The policies of one moment.

    Attributes:
        version: raised by every change at run time; 0: there was none.
        ignored: what Redis has that is not usable, as sentences.
    """

    version: int
    tasks: Sequence[TaskPolicy]
    ignored: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """A change that was made: the new version, and all that is overridden for the task now."""

    version: int
    task: str
    options: Options

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Policies:
    """The policies of one app's tasks.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses, and ``SchemaMismatch`` when
    the ledger belongs to another app.

    >>> Policies(app).set("shop.convert", {"max_crashes": 1}, actor="ann", note="until 1.2.3 is out")
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._plugin = plugin_of(app)
        self._ledger = self._plugin.open_ledger()

    def read(self) -> PolicySheet:
        """Return the policy of every guarded task, and of every task that has an override."""
        check_owner(self._app, Queries(self._ledger))
        overrides, complaints = Overrides.read(*stored.read(self._ledger))
        guarded = self._guarded()
        names = sorted({*guarded, *overrides.by_task})
        sheet = [_task_policy(name, guarded.get(name), overrides, self._plugin.settings) for name in names]
        return PolicySheet(
            version=overrides.version, tasks=sheet, ignored=[str(complaint) for complaint in complaints]
        )

    def set(
        self,
        task: str,
        options: Options,
        *,
        actor: str = "",
        note: str = "",
        if_version: int | None = None,
        force: bool = False,
    ) -> PolicyChange:
        """Override options of one task, or of every guarded task (``*``); its other overrides stay.

        Args:
            if_version: change nothing unless this is still the version.
            force: even if this app guards no task of that name.

        Raises:
            ConfigurationError: unknown option or impossible value.
            MessageNotFound: this app guards no such task.
            PolicyConflict: somebody else changed a policy since ``if_version``.
        """
        check_override(task, options)
        if not options:
            raise ConfigurationError(f"policy of {task}: no option given; there are {', '.join(OVERRIDABLE)}")
        if task == stored.VERSION:
            raise ConfigurationError(f"a task named {task!r} cannot be overridden: the name is taken")
        if not force:
            self._refuse_unless_guarded(task)
        said = "set " + " ".join(f"{name}={shown(value)}" for name, value in options.items())
        return self._change(task, lambda entry: {**entry, **options}, said, actor, note, if_version)

    def unset(
        self,
        task: str,
        options: Sequence[str] = (),
        *,
        actor: str = "",
        note: str = "",
        if_version: int | None = None,
    ) -> PolicyChange:
        """Take overrides of one task, or of every task (``*``), away; all of them if none is named.

        Raises:
            MessageNotFound: nothing of that is overridden.
            PolicyConflict: somebody else changed a policy since ``if_version``.
        """

        def without(entry: Options) -> Options:
            return {name: value for name, value in entry.items() if options and name not in options}

        said = f"unset {' '.join(options) or 'everything'}"
        return self._change(task, without, said, actor, note, if_version, of=options)

    def _change(
        self,
        task: str,
        edit: Callable[[Options], Options],
        said: str,
        actor: str,
        note: str,
        if_version: int | None,
        of: Sequence[str] | None = None,
    ) -> PolicyChange:
        """Edit one entry of the newest version; ``of`` names what must be in it."""
        check_owner(self._app, Queries(self._ledger))
        told = (actor or default_actor(), f"{said}: {note}" if note else said)
        for attempt in range(1, ATTEMPTS + 1):
            version, raw = stored.read(self._ledger)
            if of is not None:
                _refuse_unless_overridden(task, of, raw)
            options = edit(entry_of(raw.get(task)))
            text = json.dumps(options) if options else ""
            expected = version if if_version is None else if_version
            try:
                version = self._ledger.set_policy(task, text, expected, *told)
            except PolicyConflict:
                if if_version is not None or attempt == ATTEMPTS:
                    raise
            else:
                return PolicyChange(version=version, task=task, options=options)
        raise AssertionError("the last attempt returns or raises")

    def _guarded(self) -> dict[str, PoisonTask]:
        # What a worker would load at its start.
        self._app.loader.import_default_modules()
        return {name: task for name, task in self._app.tasks.items() if isinstance(task, PoisonTask)}

    def _refuse_unless_guarded(self, task: str) -> None:
        guarded = self._guarded()
        if task != EVERY_TASK and task not in guarded:
            near = get_close_matches(task, guarded, n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise MessageNotFound(f"this app guards no task {task!r}{hint} (force sets it all the same)")


def shown(value: Any) -> str:
    """Return a value as people type it."""
    return "none" if value is None else str(value)


def _refuse_unless_overridden(task: str, options: Sequence[str], raw: Mapping[str, bytes]) -> None:
    entry = entry_of(raw.get(task))
    missing = [name for name in options if name not in entry]
    if task not in raw or missing:
        what = ", ".join(missing) or "nothing"
        raise MessageNotFound(f"policy of {task}: {what} is{' not' if missing else ''} overridden")


def _task_policy(name: str, task: PoisonTask | None, overrides: Overrides, settings: Settings) -> TaskPolicy:
    if task is None:
        own = overrides.by_task.get(name, {})
        return TaskPolicy(task=name, values=own, origins=dict.fromkeys(own, "override"), guarded=False)
    policy = Policy.of(task, settings, overrides.of(name))
    return TaskPolicy(
        task=name,
        values={option: getattr(policy, option) for option in OVERRIDABLE},
        origins={option: _origin(name, option, task, overrides) for option in OVERRIDABLE},
        guarded=True,
    )


def _origin(name: str, option: str, task: PoisonTask, overrides: Overrides) -> str:
    holder = overrides.origin(name, option)
    if holder is not None:
        return "override" if holder == name else f"override {holder}"
    return "code" if option in own_options(task) else "setting"
