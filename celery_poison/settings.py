"""The plugin's settings: one frozen, validated object, read once from the Celery configuration.

A wrong name or an impossible value raises :class:`ConfigurationError`, which names the setting,
the value and the nearest valid name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from celery_poison import values
from celery_poison.errors import ConfigurationError
from celery_poison.text import did_you_mean
from celery_poison.values import Check, Receiver

PREFIX = "poison_"

#: Settings whose values may hold a password.
_SECRET = ("redis_url", "notify", "outbox_database")

#: Options of a task that a queue has, too; not what is a function of one task's arguments.
QUEUE_OPTIONS = (
    *("max_crashes", "max_failures", "max_payload_bytes", "block_fingerprint_after"),
    *("keep_failures", "ignore", "convict_at_once", "exception_destination", "blocked_retry_timeout"),
)
#: Options that only queues have.
LIMIT_OPTIONS = ("max_messages", "max_messages_behavior", "suspend_after_failures", "suspend_failure_ratio")


def _queues(value: Any) -> str | None:
    known = (*QUEUE_OPTIONS, *LIMIT_OPTIONS)
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


def _setting(default: Any, check: Check, doc: str, *, unit: str = "") -> Any:
    return field(default=default, metadata={"check": check, "doc": doc, "unit": unit})


def _flag(doc: str, *, default: bool = False) -> Any:
    return _setting(default, values.flag, doc)


def _whole(default: int | None, minimum: int, doc: str, unit: str) -> Any:
    check = values.number(minimum, integer=True, optional=default is None)
    return _setting(default, check, doc, unit=unit)


def _seconds(default: float | None, minimum: float, doc: str) -> Any:
    return _setting(default, values.number(minimum, optional=default is None), doc, unit="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All ``poison_*`` settings; see docs/settings.md, which is checked against this class."""

    redis_url: str | None = _setting(
        None,
        values.url,
        "Where the ledger lives. Default: the broker if it is Redis, else the result backend if it is Redis.",
    )
    namespace: str = _setting("poison", values.name, "Prefix and hash tag of every key of the ledger.")
    guard_all: bool = _flag("Guard every task of the app. Tasks keep their own acknowledgement mode.")
    observe_only: bool = _flag("Judge and journal everything, divert nothing.")
    fail_open: bool = _flag(
        "When the ledger is away: True runs tasks unguarded, False holds them back.", default=True
    )
    max_crashes: int = _whole(2, 1, "Deaths attributed to a message before it is quarantined.", "deaths")
    max_failures: int = _whole(
        5,
        1,
        "Times a message may be put back (rollback, Reject(requeue=True), time limit) before quarantine.",
        "failures",
    )
    max_payload_bytes: int | None = _whole(
        None,
        1,
        "Largest body accepted, as received, before it is unpacked or decoded. None: no limit.",
        "bytes",
    )
    fingerprint: Callable[..., Any] | None = _setting(  # noqa: RUF009 - a field, like the others
        None,
        values.function,
        "Function of the task's arguments that tells equal messages. None: all arguments.",
    )
    block_fingerprint_after: int | None = _whole(
        None,
        1,
        "Convictions of one fingerprint after which new messages bearing it are quarantined on arrival.",
        "convictions",
    )
    keep_failures: bool = _flag(
        "Keep in quarantine what failed with an exception: raised without a retry, or its retries used up."
        " Its caller is told as ever."
    )
    ignore: Collection[type[Exception] | str] = _setting(
        (),
        values.exceptions,
        "Exceptions that are left alone in spite of keep_failures, by class or dotted name.",
    )
    convict_at_once: Collection[type[Exception] | str] = _setting(
        (),
        values.exceptions,
        "Exceptions at the first of which a message goes to quarantine without a retry, by class or dotted"
        " name; also without keep_failures.",
    )
    idempotency_key: Callable[..., Any] | None = _setting(  # noqa: RUF009 - a field, like the others
        None,
        values.function,
        "Function of the task's arguments whose result names the effect: a second message with the same one"
        " has none of its own. None: no key.",
    )
    idempotency_window: float = _seconds(
        86_400.0, 1, "How long a key counts after the first task with it has returned."
    )
    exception_destination: str | Mapping[str, str | None] | None = _setting(
        "system",
        values.destination,
        "Where poison goes: 'system' (the quarantine), a queue name, None (it stays and is redelivered after"
        " poison_blocked_retry_timeout), or a mapping of causes, '*' for every other one, to these.",
    )
    transactional_publish: bool = _flag(
        "What a task publishes leaves when it has succeeded, and not at all if it fails."
    )
    on_send_failed: Mapping[str, Any] | str | None = _setting(
        None,
        values.error_transaction,
        "Error transaction: a message could not be sent. A signature, or a task's name.",
    )
    on_rollback: Mapping[str, Any] | str | None = _setting(
        None,
        values.error_transaction,
        "Error transaction: an attempt of a task ended without success, and is no retry.",
    )
    on_quarantine: Mapping[str, Any] | str | None = _setting(
        None, values.error_transaction, "Error transaction: a message was put into quarantine."
    )
    on_discard: Mapping[str, Any] | str | None = _setting(
        None,
        values.error_transaction,
        "Error transaction: a message was discarded, by its task or by a person.",
    )
    quarantine_queue: str = _setting("celery.quarantine", values.name, "Name of the quarantine.")
    quarantine_keep: float | None = _seconds(
        None,
        1,
        "How long messages are kept in quarantine, and as long again what was given up, before they are"
        " exported and deleted. None: for ever.",
    )
    quarantine_export: str | None = _setting(
        None, values.directory, "Directory that what was kept too long is written to before it is deleted."
    )
    keep_unprocessable: int = _whole(
        10_000,
        0,
        "What never reached a task (unknown task, undecodable, malformed, no task at all) is kept while fewer"
        " messages than this are in quarantine. 0: dropped, as plain Celery does.",
        "messages",
    )
    blocked_retry_timeout: float = _setting(
        5.0,
        values.retry_timeout,
        "With exception_destination=None: pause before the next delivery; 0 at once, -1 not before a person"
        " releases it.",
        unit="seconds",
    )
    spool_directory: str | None = _setting(
        None,
        values.directory,
        "Private directory of the machine for what quarantine cannot take while Redis is away, or refuses it."
        " None: that stays with the broker until Redis takes it.",
    )
    rollback_pause: float = _seconds(
        0.0, 0, "Pause before what was rolled back goes back; doubled each time."
    )
    queues: Mapping[str, Mapping[str, Any]] | None = _setting(
        None, _queues, "What differs in some queues: {queue: {option: value}}. A task's own goes before it."
    )
    suspend_after_failures: int = _whole(
        0,
        0,
        "Sequential failures, over its whole pool, after which a worker stops consuming a queue. 0: never.",
        "failures",
    )
    suspend_failure_ratio: float | None = _setting(
        None,
        values.share,
        "Share of failures among a worker's last 10 runs of a queue at which it stops consuming that.",
    )
    suspend_for: float = _seconds(
        60.0, 0.1, "How long it does not consume that queue. Then one message of it runs, and decides."
    )
    suspend_share: float = _setting(
        0.5,
        values.number(0),
        "Share of the workers of a queue that may have stopped consuming it at a time; one always may.",
    )
    max_messages: int | None = _whole(
        None,
        1,
        "Messages that may wait in a queue, and in the quarantine; poison_queues has limits of single queues."
        " None: no limit.",
        "messages",
    )
    max_messages_behavior: Literal["reject_new", "discard_old"] = _setting(
        "reject_new",
        values.one_of("reject_new", "discard_old"),
        "At the limit: 'reject_new', publishing raises QueueFull; 'discard_old', the oldest messages make"
        " room, and are kept as given up.",
    )
    second_person: int | None = _whole(
        None,
        2,
        "Messages from which on a release, a scheduled release or a purge is done only once a second person"
        " asks for the same. None: one is enough.",
        "messages",
    )
    outbox: bool = _flag(
        "Store what is published for a guarded task in the ledger first; a relay in the workers sends it."
    )
    outbox_database: str | None = _setting(
        None,
        values.database,
        "Your own database, in whose transactions messages are stored: 'django', 'django:ALIAS', or a URL of"
        " SQLAlchemy. A relay moves them from there into the ledger.",
    )
    outbox_timeout: float = _seconds(
        3.0, 0.1, "How long storing a message may keep its caller waiting before the ledger counts as away."
    )
    outbox_retries: int = _whole(
        3,
        0,
        "Times that a message is sent again, where its failure may pass, before that is told.",
        "retries",
    )
    outbox_retry_interval: float = _seconds(1.0, 0, "Pause before each of them.")
    outbox_resend_interval: float = _seconds(
        10.0, 0.1, "Pause after these, in which nothing is sent to that queue; then it begins anew."
    )
    outbox_auto_block: bool | Collection[str] = _setting(
        False,
        values.names_or_flag,
        "Block sending to a queue also where the failure may pass, until somebody unblocks it: True, or a"
        " list of queues.",
    )
    heartbeat_interval: float = _seconds(3.0, 0.05, "Pause between heartbeats.")
    activation_interval: float = _seconds(
        10.0, 0.1, "Silence after which a worker counts as dead; at least twice the heartbeat interval."
    )
    trial: Literal["cell", "queue", "off"] = _setting(
        "cell",
        values.one_of("cell", "queue", "off"),
        "How a suspect is tried: 'cell', alone in a process beside the pool; 'queue', alone in a worker"
        " that serves the trial queue; 'off', not at all: it runs like every other message, and two deaths"
        " convict.",
    )
    trial_queue: str = _setting(
        "celery.trial",
        values.name,
        "With poison_trial='queue': the queue in which suspects wait for their trial.",
    )
    trial_memory_limit: int | None = _whole(
        None,
        1,
        "Memory that a suspect may use in its cell before it counts as out of memory. None: what there is.",
        "bytes",
    )
    trial_cells: int | None = _whole(
        None,
        1,
        "How many suspects a worker tries side by side at most, each in a cell of its own. None: as many as"
        " it has slots, and as its memory bears.",
        "cells",
    )
    fleet_gate_share: float | None = _setting(
        0.5,
        values.share,
        "Share of the workers whose deaths within the window close the fleet gate: until it is lifted, only a"
        " death on trial convicts. None: never.",
    )
    fleet_gate_workers: int = _whole(3, 1, "Workers that must have died at least.", "workers")
    fleet_gate_window: float = _seconds(
        60.0, 0.1, "Time within which they died; for as long after the last such death the gate stays closed."
    )
    durability: Literal["process", "sync"] = _setting(
        "process",
        values.one_of("process", "sync"),
        "What a recorded start survives: the process that wrote it, or Redis too: it is on disk, or on a"
        " replica, before the task begins.",
    )
    journal: Literal["attempts", "incidents"] = _setting(
        "attempts",
        values.one_of("attempts", "incidents"),
        "Journal every finished attempt, or count ended runs per task and journal only incidents.",
    )
    journal_maxlen: int = _whole(1_000_000, 1000, "Entries the journal keeps, approximately.", "entries")
    redact: Sequence[str] | bool = _setting(
        ("*password*", "*secret*", "*token*"),
        values.redact,
        "Arguments that logs and displays hide: names, with * and ?, also of keys within them. True: all.",
    )
    notify: Receiver | Sequence[Receiver] | None = _setting(  # noqa: RUF009 - a field, like the others
        None,
        values.receivers,
        "Who is told of each new group in quarantine, and of a fleet gate that closed: a list of URLs,"
        " commands, 'module:function' and 'event'. None: nobody.",
    )
    notify_per_minute: int = _whole(
        10,
        1,
        "At most so many for each of them; what is more is summed up in one.",
        "notifications per minute",
    )
    release: str = _setting(
        "",
        values.release,
        "Version of your own code, as you call it; journalled, so that deploys can be compared.",
    )

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
        known = {PREFIX + f.name: f for f in fields(cls)}
        for name, value in chosen.items():
            if name not in known:
                raise ConfigurationError(f"unknown setting {name}={value!r}{did_you_mean(name, known)}")
            if complaint := known[name].metadata["check"](value):
                shown = "<url>" if name.removeprefix(PREFIX) in _SECRET else repr(value)
                raise ConfigurationError(f"{name}={shown} is impossible: {complaint}")
        settings = cls(**{name.removeprefix(PREFIX): value for name, value in chosen.items()})
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
    def has_trials(self) -> bool:
        """Whether suspects are tried alone."""
        return self.trial != "off" and not self.observe_only
