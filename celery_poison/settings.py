"""The plugin's settings: one frozen, validated object, read once from the Celery configuration.

A wrong name or an impossible value raises :class:`ConfigurationError`, which names the setting,
the value and the nearest valid name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, Self

from celery_poison.errors import ConfigurationError

PREFIX = "poison_"

#: How the URL of a ledger may begin; Valkey is spoken to as Redis is.
REDIS_SCHEMES = (
    "redis://",
    "rediss://",
    "unix://",
    "redis+socket://",
    "sentinel://",
    "valkey://",
    "valkeys://",
)

Check = Callable[[Any], str | None]


def _one_of(*allowed: str) -> Check:
    return lambda v: None if v in allowed else f"use one of {', '.join(map(repr, allowed))}"


def _number(minimum: float, *, integer: bool = False, optional: bool = False) -> Check:
    kind = "a whole number" if integer else "a number"
    wanted = f"use {kind} of at least {minimum}" + (" or None" if optional else "")

    def check(value: Any) -> str | None:
        if value is None:
            return None if optional else wanted
        number = isinstance(value, int) or (isinstance(value, float) and not integer)
        good = number and not isinstance(value, bool) and value >= minimum
        return None if good else wanted

    return check


def _retry_timeout(value: Any) -> str | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and (value >= 0 or value == -1)
    if not good:
        return "use seconds, 0 for at once or -1 for never"
    return None


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "use True or False"


def _name(value: Any) -> str | None:
    good = isinstance(value, str) and value and not set(value) & set("{} \t\r\n")
    return None if good else "use a name without blanks and braces"


def _url(value: Any) -> str | None:
    good = value is None or (isinstance(value, str) and value.startswith(REDIS_SCHEMES))
    return None if good else f"use a URL that begins with one of {', '.join(REDIS_SCHEMES)}"


def _destination(value: Any) -> str | None:
    return None if value is None or _name(value) is None else "use 'system', a queue name or None"


def _exceptions(value: Any) -> str | None:
    good = isinstance(value, (tuple, list, set, frozenset)) and all(map(_is_exception, value))
    return None if good else "use a tuple of exception classes, or of their dotted names as text"


def _is_exception(value: Any) -> bool:
    if isinstance(value, str):
        return all(part.isidentifier() for part in value.split("."))
    return isinstance(value, type) and issubclass(value, Exception)


def _callable(value: Any) -> str | None:
    return None if value is None or callable(value) else "use a function of the task's arguments, or None"


def _share(value: Any) -> str | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    good = value is None or (number and 0 < value <= 1)
    return None if good else "use a number above 0 and up to 1, or None for no gate"


def _release(value: Any) -> str | None:
    good = isinstance(value, str) and len(value) <= 100 and value.isprintable()
    return None if good else "use your own version as text of at most 100 characters, or ''"


def _redact(value: Any) -> str | None:
    names = isinstance(value, (list, tuple)) and all(isinstance(name, str) and name for name in value)
    return None if names or isinstance(value, bool) else "use a list of names and patterns, or True for all"


def _setting(default: Any, check: Check, doc: str, *, unit: str = "", acts: bool = True) -> Any:
    metadata = {"check": check, "doc": doc, "unit": unit, "acts": acts}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All ``poison_*`` settings; see docs/settings.md, which is checked against this class."""

    redis_url: str | None = _setting(
        None,
        _url,
        "Where the ledger lives. Default: the broker if it is Redis, else the result backend if it is Redis.",
    )
    namespace: str = _setting("poison", _name, "Prefix and hash tag of every key of the ledger.")
    guard_all: bool = _setting(
        False, _flag, "Guard every task of the app. Tasks keep their own acknowledgement mode."
    )
    observe_only: bool = _setting(False, _flag, "Judge and journal everything, divert nothing.")
    fail_open: bool = _setting(
        True, _flag, "When the ledger is away: True runs tasks unguarded, False holds them back."
    )
    max_crashes: int = _setting(
        2, _number(1, integer=True), "Deaths attributed to a message before it is quarantined.", unit="deaths"
    )
    max_failures: int = _setting(
        5,
        _number(1, integer=True),
        "Times a message may be put back (rollback, Reject(requeue=True), time limit) before quarantine.",
        unit="failures",
    )
    max_payload_bytes: int | None = _setting(
        None,
        _number(1, integer=True, optional=True),
        "Largest body accepted, as received, before it is unpacked or decoded. None: no limit.",
        unit="bytes",
    )
    fingerprint: Callable[..., Any] | None = _setting(  # noqa: RUF009 - a field, like the others
        None, _callable, "Function of the task's arguments that tells equal messages. None: all arguments."
    )
    block_fingerprint_after: int | None = _setting(
        None,
        _number(1, integer=True, optional=True),
        "Convictions of one fingerprint after which new messages bearing it are quarantined on arrival.",
        unit="convictions",
    )
    keep_failures: bool = _setting(
        False,
        _flag,
        "Keep in quarantine what failed with an exception: raised without a retry, or its retries used up."
        " Its caller is told as ever.",
    )
    ignore: Collection[type[Exception] | str] = _setting(
        (), _exceptions, "Exceptions that are left alone in spite of keep_failures, by class or dotted name."
    )
    convict_at_once: Collection[type[Exception] | str] = _setting(
        (),
        _exceptions,
        "Exceptions at the first of which a message goes to quarantine without a retry, by class or dotted"
        " name; also without keep_failures.",
    )
    exception_destination: str | None = _setting(
        "system", _destination, "Where poison goes: 'system', a queue name, or None (it stays).", acts=False
    )
    quarantine_queue: str = _setting("celery.quarantine", _name, "Name of the quarantine.")
    keep_unprocessable: int = _setting(
        10_000,
        _number(0, integer=True),
        "What never reached a task (unknown task, undecodable, malformed, no task at all) is kept while fewer"
        " messages than this are in quarantine. 0: dropped, as plain Celery does.",
        unit="messages",
    )
    blocked_retry_timeout: float = _setting(
        5.0,
        _retry_timeout,
        "With exception_destination=None: pause before the next delivery; 0 at once, -1 never.",
        unit="seconds",
        acts=False,
    )
    suspend_after_failures: int = _setting(
        0,
        _number(0, integer=True),
        "Sequential failures after which a worker stops consuming a queue. 0: never.",
        unit="failures",
        acts=False,
    )
    max_messages: int | None = _setting(
        None,
        _number(1, integer=True, optional=True),
        "Limit per queue. None: no limit.",
        unit="messages",
        acts=False,
    )
    max_messages_behavior: Literal["reject_new", "discard_old"] = _setting(
        "reject_new", _one_of("reject_new", "discard_old"), "What happens at max_messages.", acts=False
    )
    heartbeat_interval: float = _setting(3.0, _number(0.05), "Pause between heartbeats.", unit="seconds")
    activation_interval: float = _setting(
        10.0,
        _number(0.1),
        "Silence after which a worker counts as dead; at least twice the heartbeat interval.",
        unit="seconds",
    )
    trial: Literal["cell", "queue", "off"] = _setting(
        "cell",
        _one_of("cell", "queue", "off"),
        "How a suspect is tried: 'cell', alone in a fresh process beside the pool; 'queue', alone in a worker"
        " that serves the trial queue; 'off', not at all: it runs like every other message, and two deaths"
        " convict.",
    )
    trial_queue: str = _setting(
        "celery.trial", _name, "With poison_trial='queue': the queue in which suspects wait for their trial."
    )
    trial_memory_limit: int | None = _setting(
        None,
        _number(1, integer=True, optional=True),
        "Memory that a suspect may use in its cell before it counts as out of memory. None: what there is.",
        unit="bytes",
    )
    trial_cells: int | None = _setting(
        None,
        _number(1, integer=True, optional=True),
        "How many suspects a worker tries side by side, each in a cell of its own. None: one for four slots,"
        " at least one and at most four.",
        unit="cells",
    )
    fleet_gate_share: float | None = _setting(
        0.5,
        _share,
        "Share of the workers whose deaths within the window close the fleet gate: until it is lifted, only a"
        " death on trial convicts. None: never.",
    )
    fleet_gate_workers: int = _setting(
        3, _number(1, integer=True), "Workers that must have died at least.", unit="workers"
    )
    fleet_gate_window: float = _setting(
        60.0,
        _number(0.1),
        "Time within which they died; for as long after the last such death the gate stays closed.",
        unit="seconds",
    )
    durability: Literal["process", "sync"] = _setting(
        "process",
        _one_of("process", "sync"),
        "What a recorded start survives: the process that wrote it, or Redis too: it is on disk, or on a"
        " replica, before the task begins.",
    )
    journal: Literal["attempts", "incidents"] = _setting(
        "attempts",
        _one_of("attempts", "incidents"),
        "Journal every finished attempt, or count ended runs per task and journal only incidents.",
    )
    journal_maxlen: int = _setting(
        1_000_000, _number(1000, integer=True), "Entries the journal keeps, approximately.", unit="entries"
    )
    redact: Sequence[str] | bool = _setting(
        ("*password*", "*secret*", "*token*"),
        _redact,
        "Arguments that logs and displays hide: names, with * and ?, also of keys within them. True: all.",
    )
    release: str = _setting(
        "", _release, "Version of your own code, as you call it; journalled, so that deploys can be compared."
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
        values = {str(k).lower(): conf[k] for k in conf if str(k).lower().startswith(PREFIX)}
        values.update(overrides or {})
        known = {PREFIX + f.name: f for f in fields(cls)}
        for name, value in values.items():
            _check(name, value, known)
        settings = cls(**{name.removeprefix(PREFIX): value for name, value in values.items()})
        settings._check_intervals()
        return settings

    def _check_intervals(self) -> None:
        if self.activation_interval < 2 * self.heartbeat_interval:
            raise ConfigurationError(
                f"poison_activation_interval={self.activation_interval} must be at least twice"
                f" poison_heartbeat_interval={self.heartbeat_interval}: raise the first or lower the second"
            )

    @property
    def has_trials(self) -> bool:
        """Whether suspects are tried alone."""
        return self.trial != "off" and not self.observe_only

    def inactive(self) -> list[str]:
        """Return the names of settings that were changed but that this version does not act on yet."""
        changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return [PREFIX + f.name for f in changed if not f.metadata["acts"]]


def _check(name: str, value: Any, known: Mapping[str, Field[Any]]) -> None:
    if name not in known:
        raise ConfigurationError(f"unknown setting {name}={value!r}{did_you_mean(name, known)}")
    complaint = known[name].metadata["check"](value)
    if complaint:
        shown = "<url>" if name == PREFIX + "redis_url" else repr(value)
        raise ConfigurationError(f"{name}={shown} is impossible: {complaint}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``": did you mean X?"`` for the nearest valid name, or the list of all names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f": did you mean {near[0]}?" if near else f": valid names are {', '.join(sorted(names))}"
