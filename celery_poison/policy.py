"""What one task tolerates in one queue: settings, options of its own, and what was overridden at run time.

Of one option that counts which comes first: an override of the task, of the queue, of every task (``*``); the
task's own in the code; the queue's in ``poison_queues``; the app's setting.

Overrides are in Redis (EMS-9): they are read with suspicion, and laid over the code.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from celery_poison.basics.text import did_you_mean
from celery_poison.decide import Failing, failing
from celery_poison.errors import ConfigurationError
from celery_poison.rules.destinations import SYSTEM, Destination
from celery_poison.rules.failures import kinds_of, name_of
from celery_poison.settings import PREFIX, QUEUE_OPTIONS, S, Section, Settings, all_sections

#: Options that can be overridden at run time: those that are plain data.
OVERRIDABLE = ("max_crashes", "max_failures", "max_payload_bytes", "block_fingerprint_after")

_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits of one task. Every field is also an option of ``guarded(...)`` and a task attribute. Where the
    code says nothing, the setting of that name holds, ``poison_max_crashes`` for example.

    Attributes:
        max_crashes: deaths before quarantine (SAP-3); default 2.
        max_failures: times a message may be put back before quarantine (WAS-3); default 5.
        max_payload_bytes: largest body accepted, as received (SAP-6); default no limit.
        fingerprint: function of the arguments: equal results, equal messages (NEW-3); default all of them.
        block_fingerprint_after: convictions of one fingerprint after which new messages with it are
            quarantined on arrival (NEW-3); default never.
        keep_failures: keep messages that failed with an exception (NEW-10); default no.
        ignore: exceptions that are left alone all the same: classes, or their dotted names; default none.
        convict_at_once: exceptions at the first of which a message is quarantined without a retry, also
            without ``keep_failures``; default none.
        rerun: False: what began and was cut off is quarantined at once, and never runs again by itself
            (NEW-16); default True.
        exception_destination: where poison goes (WAS-4): ``"system"`` (default), a queue name, None (it
            stays), or a mapping of causes to these.
        blocked_retry_timeout: where that is None: seconds before the next delivery, 0 at once, -1 not before
            a person releases it (WAS-5); default 5.
        sections: options of extensions, each by its class, where any is set; no option.
        keeps_attempts: a start leaves its message in the ledger, for who reports its failure; no option.
        by_queue: queue -> what holds there instead; no option.
    """

    max_crashes: int = 2
    max_failures: int = 5
    max_payload_bytes: int | None = None
    fingerprint: Callable[..., Any] | None = None
    block_fingerprint_after: int | None = None
    keep_failures: bool = False
    ignore: Collection[type[Exception] | str] = ()
    convict_at_once: Collection[type[Exception] | str] = ()
    rerun: bool = True
    exception_destination: Destination = SYSTEM
    blocked_retry_timeout: float = 5.0
    sections: Mapping[type[Section], Any] = field(default_factory=dict, hash=False, repr=False)
    keeps_attempts: bool = False
    by_queue: Mapping[str, Policy] = field(default_factory=dict, hash=False, repr=False)

    def at(self, queue: str) -> Policy:
        """Return the policy for messages of ``queue`` (WAS-3)."""
        return self.by_queue.get(queue, self)

    def section(self, kind: type[S]) -> S:
        """Return the options of an extension."""
        chosen: S | None = self.sections.get(kind)
        return kind() if chosen is None else chosen

    def failing(self, error: BaseException) -> Failing:
        """Decide what is done about an exception that the task raised."""
        return failing(
            kinds_of(error),
            keep=self.keep_failures,
            ignore={*map(name_of, self.ignore)},
            convict_at_once={*map(name_of, self.convict_at_once)},
        )

    @classmethod
    def option_names(cls) -> list[str]:
        return [*_own_names(), *(name for each in all_sections() for name in each.task_options)]

    @classmethod
    def of(
        cls,
        task: object,
        settings: Settings,
        overrides: Mapping[str, Any] = _NONE,
        of_queue: Mapping[str, Any] = _NONE,
    ) -> Self:
        """Return the policy of ``task``: ``overrides``, else its own attributes, else what settings say.

        Args:
            overrides: options that were changed at run time, checked already (EMS-9).
            of_queue: what ``poison_queues`` says of the queue.

        Raises:
            ConfigurationError: a task attribute has an impossible value.
        """
        own = own_options(task)
        check_options(own, where=f"task {getattr(task, 'name', task)!r}")
        options = {name: getattr(settings, name) for name in _own_names()}
        chosen = {**options, **of_queue, **own, **overrides}
        sections = {type(each): each for each in _sections_of(own, settings)}
        keeps = any(each.keeps_attempts for each in sections.values())
        own_values = {name: chosen[name] for name in options}
        return cls(**own_values, sections=sections, keeps_attempts=keeps)


#: Fields of a policy that are no options.
_NO_OPTIONS = ("sections", "keeps_attempts", "by_queue")


def _own_names() -> list[str]:
    return [each.name for each in fields(Policy) if each.name not in _NO_OPTIONS]


def _sections_of(own: Mapping[str, Any], settings: Settings) -> Iterator[Section]:
    """Yield the options of extensions where any is set."""
    for kind in all_sections():
        of_app: Any = settings.of(kind)
        chosen = replace(of_app, **{name: own[name] for name in kind.task_options if name in own})
        if any(getattr(chosen, name) is not getattr(kind(), name) for name in kind.task_options):
            yield chosen


def policy_of(task: object, name: str, settings: Settings, overrides: Overrides) -> Policy:
    """Return the policy of the task ``name``, with what differs in some queues.

    Raises:
        ConfigurationError: a task attribute has an impossible value.
    """
    told = (settings.queues or _NONE).items()
    in_code = {
        queue: {name: value for name, value in options.items() if name in QUEUE_OPTIONS}
        for queue, options in told
    }
    by_queue = {
        queue: Policy.of(task, settings, overrides.of(name, queue), in_code.get(queue, _NONE))
        for queue in {*in_code, *overrides.by_queue}
    }
    return replace(Policy.of(task, settings, overrides.of(name)), by_queue=by_queue)


def own_options(task: object) -> dict[str, Any]:
    """Return the policy options that the code gives to ``task`` itself."""
    options = {}
    for name in Policy.option_names():
        unsaid = ... if name == "exception_destination" else None  # None says something there
        value = inspect.getattr_static(task, name, unsaid)
        if value is not unsaid:
            # A function given as a class attribute would otherwise come back bound to the task.
            options[name] = value.__func__ if isinstance(value, staticmethod) else value
    return options


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


# --- overridden at run time -----------------------------------------------------------------------

#: In the place of a task name: every guarded task.
EVERY_TASK = "*"
#: In the place of a task name: begins the name of a queue.
A_QUEUE = "queue:"


@dataclass(frozen=True, slots=True)
class Overrides:
    """All overrides of one version, checked.

    Attributes:
        version: raised by every change; 0: nothing was ever changed.
        by_task: task name, or ``*``, -> its options.
        by_queue: queue -> its options.
    """

    version: int = 0
    by_task: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    by_queue: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, version: int, raw: Mapping[str, str | bytes]) -> tuple[Self, list[ConfigurationError]]:
        """Return what is usable of ``raw`` (task name or queue -> JSON object), and why the rest is not.

        Each option is judged by itself: a newer version may know options that this one does not.
        """
        complaints: list[ConfigurationError] = []
        found: dict[str, dict[str, Any]] = {}
        for task, text in raw.items():
            entry, where = entry_of(text), f"policy of {task} in Redis"
            if not entry:
                complaints.append(ConfigurationError(f"{where} is ignored: it is no JSON object of options"))
            for name, value in entry.items():
                try:
                    check_options({name: value}, f"{where}, {name} is ignored", OVERRIDABLE)
                    found.setdefault(task, {})[name] = value
                except ConfigurationError as error:
                    complaints.append(error)
        by_task = {name: options for name, options in found.items() if not name.startswith(A_QUEUE)}
        of_queues = {name.removeprefix(A_QUEUE): found[name] for name in found.keys() - by_task.keys()}
        return cls(version, by_task, of_queues), complaints

    def of(self, task: str, queue: str = "") -> dict[str, Any]:
        """Return the overridden options of ``task`` in ``queue``: its own go before, every task's after."""
        of_queue = self.by_queue.get(queue, {})
        return {**self.by_task.get(EVERY_TASK, {}), **of_queue, **self.by_task.get(task, {})}


def entry_of(text: str | bytes | None) -> dict[str, Any]:
    """Return one stored override, unchecked; empty if there is none or it is no JSON object."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
