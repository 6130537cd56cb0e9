"""The plugin's settings: one frozen, validated object, read once from the Celery configuration.

A wrong name or an impossible value raises :class:`ConfigurationError`, which names the setting,
the value and the nearest valid name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, Self, TypeVar

from celery_poison.basics.rooms import rooms_with
from celery_poison.basics.text import did_you_mean
from celery_poison.errors import ConfigurationError
from celery_poison.rules import values
from celery_poison.rules.links import check_links
from celery_poison.rules.values import Check

PREFIX = "poison_"

#: Options of a task that a queue has, too; not what is a function of one task's arguments.
QUEUE_OPTIONS = (
    *("max_crashes", "max_failures", "max_payload_bytes", "block_fingerprint_after"),
    *("keep_failures", "ignore", "convict_at_once", "exception_destination", "blocked_retry_timeout"),
)
#: Options that only queues have.
_LIMIT_OPTIONS = ("max_messages", "max_messages_behavior")


class Section:
    """Settings of an extension: ``SETTINGS`` of its module ``settings``, a dataclass as :class:`Settings`.

    Attributes:
        queue_options: those of them that single queues have, too.
        task_options: those that are options of tasks, too: :meth:`Policy.section` has what holds for one.
    """

    __slots__ = ()
    queue_options: ClassVar[tuple[str, ...]] = ()
    task_options: ClassVar[tuple[str, ...]] = ()

    @property
    def keeps_attempts(self) -> bool:
        """Whether a start leaves its message in the ledger, for who reports its failure."""
        return False

    @property
    def publish_timeout(self) -> float | None:
        """Seconds for which who publishes waits for the ledger; None: this extension says nothing of it."""
        return None


S = TypeVar("S", bound=Section)


def all_sections() -> tuple[type[Section], ...]:
    return tuple(room.SETTINGS for room in rooms_with("settings"))


def _queues(value: Any) -> str | None:
    known = [
        *QUEUE_OPTIONS,
        *_LIMIT_OPTIONS,
        *(name for each in all_sections() for name in each.queue_options),
    ]
    try:
        for queue, options in (value or {}).items():
            for name in {*options} - {*known}:
                return f"queue {queue!r} has no option {name!r}{did_you_mean(str(name), known)}"
            Settings.from_conf({PREFIX + name: given for name, given in options.items()})
    except (AttributeError, TypeError):
        return "use a mapping of queues to mappings of options"
    except ConfigurationError as error:
        return f"queue {queue!r}: {str(error).removeprefix(PREFIX)}"
    return None


def setting(default: Any, check: Check, doc: str, *, unit: str = "", secret: bool = False) -> Any:
    """Return the field of a setting; ``secret``: its value may hold a password."""
    return field(default=default, metadata={"check": check, "doc": doc, "unit": unit, "secret": secret})


def flag(doc: str, *, default: bool = False) -> Any:
    return setting(default, values.flag, doc)


def whole(default: int | None, minimum: int, doc: str, unit: str) -> Any:
    check = values.number(minimum, integer=True, optional=default is None)
    return setting(default, check, doc, unit=unit)


def seconds(default: float | None, minimum: float, doc: str) -> Any:
    return setting(default, values.number(minimum, optional=default is None), doc, unit="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The ``poison_*`` settings of the core; :meth:`of` has those of an extension. See docs/settings.md."""

    redis_url: str | None = setting(
        None,
        values.url,
        "The ledger's Redis. Default: the broker if it is Redis, else the result backend if it is Redis.",
        secret=True,
    )
    namespace: str = setting("poison", values.name, "Prefix and hash tag of every key of the ledger.")
    guard_all: bool = flag("Guard every task of the app. Tasks keep their own acknowledgement mode.")
    observe_only: bool = flag("Judge and journal everything, divert nothing.")
    fail_open: bool = flag(
        "While the ledger is away: True runs tasks unguarded, False holds them back.", default=True
    )
    max_crashes: int = whole(2, 1, "Deaths attributed to a message before it is quarantined.", "deaths")
    max_failures: int = whole(
        5,
        1,
        "Times a message may be put back (rollback, Reject(requeue=True), time limit) before quarantine.",
        "failures",
    )
    max_payload_bytes: int | None = whole(
        None, 1, "Largest body that is accepted, as received. None: no limit.", "bytes"
    )
    fingerprint: Callable[..., Any] | None = setting(  # noqa: RUF009 - a field, like the others
        None,
        values.function,
        "Function of the task's arguments: messages with an equal result count as equal. None: all"
        " arguments.",
    )
    block_fingerprint_after: int | None = whole(
        None,
        1,
        "Convictions of one fingerprint that block it: new messages with it are quarantined on arrival.",
        "convictions",
    )
    keep_failures: bool = flag(
        "Keep a message that failed with an exception, without a retry or with its retries used up. Its"
        " caller gets the failure as ever."
    )
    ignore: Collection[type[Exception] | str] = setting(
        (), values.exceptions, "Exceptions that keep_failures leaves alone, by class or dotted name."
    )
    convict_at_once: Collection[type[Exception] | str] = setting(
        (),
        values.exceptions,
        "Exceptions that quarantine a message at once, without a retry, by class or dotted name; also"
        " without keep_failures.",
    )
    rerun: bool = flag(
        "False: a message that began and was cut off is quarantined, and never runs again by itself.",
        default=True,
    )
    exception_destination: str | Mapping[str, str | None] | None = setting(
        "system",
        values.destination,
        "Where poison goes: 'system' (the quarantine), a queue name, None (back to its queue after"
        " poison_blocked_retry_timeout), or a mapping of causes to these, '*' for all others.",
    )
    quarantine_queue: str = setting("celery.quarantine", values.name, "Name of the quarantine.")
    quarantine_keep: float | None = seconds(
        None,
        1,
        "How long messages stay in quarantine, and given-up ones as long again, before they are exported"
        " and deleted. None: for ever.",
    )
    quarantine_export: str | None = setting(
        None, values.directory, "Directory for the files of messages that poison_quarantine_keep deletes."
    )
    keep_unprocessable: int = whole(
        10_000,
        0,
        "Keep messages that never reached a task (unknown, undecodable, malformed, no task) while fewer"
        " than this are in quarantine. 0: drop them, as plain Celery does.",
        "messages",
    )
    keep_unprocessable_bytes: int = whole(
        268_435_456,
        1,
        "The same in bytes of the ledger; a quarter of its maxmemory at most.",
        "bytes",
    )
    park_bytes: int = whole(
        268_435_456,
        1,
        "Likewise of parked messages. Later ones stay with the broker.",
        "bytes",
    )
    blocked_retry_timeout: float = setting(
        5.0,
        values.retry_timeout,
        "With exception_destination=None: pause before the next delivery; 0: none, -1: until a person"
        " releases it.",
        unit="seconds",
    )
    spool_directory: str | None = setting(
        None,
        values.directory,
        "Private directory on this host for messages that quarantine cannot take while Redis is away."
        " None: they stay with the broker.",
    )
    rollback_pause: float = seconds(
        0.0, 0, "Pause before a rolled-back message goes back; doubled each time."
    )
    queues: Mapping[str, Mapping[str, Any]] | None = setting(
        None, _queues, "Options of single queues: {queue: {option: value}}. A task's own options win."
    )
    max_messages: int | None = whole(
        None, 1, "Messages that may wait in a queue, and in the quarantine. None: no limit.", "messages"
    )
    max_messages_behavior: Literal["reject_new", "discard_old"] = setting(
        "reject_new",
        values.one_of("reject_new", "discard_old"),
        "At the limit: 'reject_new': publishing raises QueueFull; 'discard_old': the oldest messages make"
        " room, and are kept as given up.",
    )
    second_person: int | None = whole(
        None,
        2,
        "A release or purge of so many messages needs a second person. None: one is enough.",
        "messages",
    )
    heartbeat_interval: float = seconds(3.0, 0.05, "Pause between heartbeats.")
    activation_interval: float = seconds(
        10.0, 0.1, "Silence after which a worker counts as dead; at least twice the heartbeat interval."
    )
    stuck_after: float = seconds(
        30.0,
        0.1,
        "Standstill after which a living worker counts as stuck.",
    )
    restart_after: float = seconds(
        300.0,
        1,
        "How long a worker may be stuck before the probe `alive` calls it beyond help.",
    )
    trial: Literal["cell", "queue", "off"] = setting(
        "cell",
        values.one_of("cell", "queue", "off"),
        "How a suspect is tried: 'cell', alone in a process beside the pool; 'queue', alone in a worker of"
        " the trial queue; 'off', not at all: two deaths convict.",
    )
    trial_queue: str = setting(
        "celery.trial", values.name, "With poison_trial='queue': the queue in which suspects wait."
    )
    trial_memory_limit: int | None = whole(
        None,
        1,
        "Memory of a suspect in its cell before it counts as out of memory. None: all there is.",
        "bytes",
    )
    trial_cells: int | None = whole(
        None,
        1,
        "How many suspects a worker tries at once at most. None: as many as it has slots and memory,"
        " up to 50.",
        "cells",
    )
    fleet_gate_share: float | None = setting(
        0.5,
        values.share,
        "Share of the workers whose deaths within the window close the fleet gate: then only a death on"
        " trial convicts. None: never.",
    )
    fleet_gate_workers: int = whole(3, 1, "Least number of dead workers that closes it.", "workers")
    fleet_gate_window: float = seconds(
        60.0, 0.1, "Time within which they died; the gate opens as long after the last such death."
    )
    durability: Literal["process", "sync"] = setting(
        "process",
        values.one_of("process", "sync"),
        "Which death a recorded start survives: 'process', that of its process; 'sync', that of Redis too:"
        " no task begins before its start is on disk, or on a replica.",
    )
    journal: Literal["attempts", "incidents"] = setting(
        "attempts",
        values.one_of("attempts", "incidents"),
        "'attempts' journals every finished run; 'incidents' only counts them per task.",
    )
    journal_maxlen: int = whole(1_000_000, 1000, "Entries the journal keeps, approximately.", "entries")
    redact: Sequence[str] | bool = setting(
        ("*password*", "*secret*", "*token*"),
        values.redact,
        "Arguments that logs and displays hide: names, with * and ?, also of keys inside arguments. True:"
        " all.",
    )
    links: Mapping[str, str] | None = setting(
        None,
        check_links,
        "Links to logs or Sentry: {name: URL}, with {task_id} or other fields.",
    )
    code_version: str = setting(
        "", values.short_name, "Version of your own code; journalled, so that deploys can be compared."
    )
    node: str = setting(
        "",
        values.short_name,
        "Machine below this worker, as you call it; journalled. Default: POISON_NODE of the environment;"
        " without either, deaths are compared by host alone.",
    )

    #: Of extensions, where any is set.
    sections: Mapping[type[Section], Any] = field(default_factory=dict, hash=False, repr=False)

    def of(self, section: type[S]) -> S:
        """Return the settings of an extension."""
        chosen: S | None = self.sections.get(section)
        return section() if chosen is None else chosen

    @classmethod
    def by_name(cls) -> dict[str, Field[Any]]:
        """Return all settings, those of extensions too, by their public names."""
        return {PREFIX + each.name: each for section in (cls, *all_sections()) for each in _fields(section)}

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Self:
        """Read and check the settings.

        Args:
            conf: the Celery configuration; only keys that begin with ``poison_`` are looked at.
            overrides: what was given to ``install(app, ...)``; wins over ``conf``.

        Raises:
            ConfigurationError: unknown name, impossible value, or intervals that contradict (EMS-1).
        """
        chosen = {str(k).lower(): conf[k] for k in conf if str(k).lower().startswith(PREFIX)}
        chosen.update(overrides or {})
        known = cls.by_name()
        for name, value in chosen.items():
            if name not in known:
                raise ConfigurationError(f"unknown setting {name}={value!r}{did_you_mean(name, known)}")
            if complaint := known[name].metadata["check"](value):
                shown = "<url>" if known[name].metadata["secret"] else repr(value)
                raise ConfigurationError(f"{name}={shown} is impossible: {complaint}")
        of_sections = {each: _values_of(each, chosen) for each in all_sections()}
        sections = {each: each(**values) for each, values in of_sections.items() if values}
        settings = cls(**_values_of(cls, chosen), sections=sections)
        settings._check_intervals()
        return settings

    def _check_intervals(self) -> None:
        if self.quarantine_keep is not None and not self.quarantine_export:
            raise ConfigurationError(
                "poison_quarantine_keep deletes nothing without a copy: set poison_quarantine_export"
            )
        if self.activation_interval < 2 * self.heartbeat_interval:
            raise ConfigurationError(
                f"poison_activation_interval={self.activation_interval} must be at least twice"
                f" poison_heartbeat_interval={self.heartbeat_interval}: raise the first or lower the second"
            )

    @property
    def publish_timeout(self) -> float:
        """Seconds for which who publishes waits for the ledger at most."""
        chosen = (self.of(each).publish_timeout for each in all_sections())
        return next((each for each in chosen if each is not None), 3.0)

    @property
    def has_trials(self) -> bool:
        """Whether suspects are tried alone."""
        return self.trial != "off" and not self.observe_only


def _fields(section: type[Any]) -> list[Field[Any]]:
    return [each for each in fields(section) if each.metadata]


def _values_of(section: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = (each.name for each in _fields(section))
    return {name: values[PREFIX + name] for name in names if PREFIX + name in values}
