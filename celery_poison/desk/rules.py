"""What is in force for an app, changed while its workers run: block list, policies, fleet gate.

:class:`~celery_poison.quarantine.Quarantine` has these methods, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_poison import signals
from celery_poison.desk.owner import default_actor
from celery_poison.desk.store import Store
from celery_poison.errors import ConfigurationError, MessageNotFound, PolicyConflict
from celery_poison.ledger import policies as stored
from celery_poison.ledger.fleet_model import GateRecord
from celery_poison.model import Record
from celery_poison.policy import (
    A_QUEUE,
    EVERY_TASK,
    OVERRIDABLE,
    Overrides,
    Policy,
    check_options,
    entry_of,
    own_options,
)
from celery_poison.rules.blocks import Rule, RuleKind, is_fingerprint, read_rules
from celery_poison.settings import Settings
from celery_poison.task import PoisonTask

#: How often a change of a policy is tried again that others were faster than.
ATTEMPTS = 10

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockList(Record):
    """The block list of one moment, the newest rule first.

    Attributes:
        version: raised by every change; 0: there was none.
        ignored: what Redis has that is not usable, as sentences.
    """

    version: int
    rules: Sequence[Rule]
    ignored: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy(Record):
    """The policy of one task.

    Attributes:
        task: its name; ``*`` is what was overridden for every task, ``queue:NAME`` what differs in a queue.
        values: option -> value; of ``*`` and of a task that this app does not guard, only what is overridden.
        origins: option -> where its value comes from: ``override``, ``override *``, ``code`` or ``setting``.
        guarded: whether this app guards such a task.
    """

    task: str
    values: Options
    origins: Mapping[str, str]
    guarded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyList(Record):
    """The policies of one moment; attributes as of :class:`BlockList`."""

    version: int
    tasks: Sequence[TaskPolicy]
    ignored: Sequence[str]


class PolicyChange(NamedTuple):
    """A change that was made: the new version, and all that is overridden for the task now."""

    version: int
    task: str
    options: Options


class Rules:
    """The rules that an operator puts in force. Raises, ``actor`` and ``note`` as of ``Quarantine``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ledger, self._queries = store.ledger, store.queries

    # --- block list (NEW-3) --------------------------------------------------------------------

    def blocks(self) -> BlockList:
        """Return the block list: the rules in force, the newest first."""
        self._store.check_owner()
        version, raw, now = stored.read(self._ledger, self._ledger.keys.blocks)
        rules, complaints = read_rules(raw, now)
        newest_first = sorted(rules.values(), key=lambda rule: -rule.since)
        return BlockList(version=version, rules=newest_first, ignored=[*map(str, complaints)])

    def block_task(
        self, task: str, *, seconds: float | None = None, actor: str = "", note: str = "", force: bool = False
    ) -> Rule:
        """Send every new message of ``task`` to quarantine on arrival.

        Args:
            seconds: for how long; None: until a person unblocks it.
            force: even if this app guards no task of that name.

        Raises:
            MessageNotFound: this app guards no such task.
        """
        if not force:
            self._store.refuse_unless_guarded(task, "--force blocks it all the same")
        return self._block(RuleKind.TASK, task, task, seconds, actor, note)

    def block_fingerprint(
        self,
        fingerprint: str,
        *,
        task: str = "",
        seconds: float | None = None,
        actor: str = "",
        note: str = "",
    ) -> Rule:
        """Send new messages that bear ``fingerprint`` to quarantine on arrival.

        Args:
            task: whose messages can bear it; without it workers compute the fingerprints of all tasks.
            seconds: for how long; None: until a person unblocks it.

        Raises:
            ConfigurationError: it is no fingerprint.
        """
        if not is_fingerprint(fingerprint):
            raise ConfigurationError(f"{fingerprint!r} is no fingerprint: `list --json` shows them")
        return self._block(RuleKind.FINGERPRINT, fingerprint, task, seconds, actor, note)

    def unblock(self, kind: RuleKind, name: str, *, actor: str = "", note: str = "") -> int:
        """Let messages of a task, or of a fingerprint, run again; return the list's new version.

        Messages in quarantine stay there. Convictions of the fingerprint are forgotten.

        Raises:
            MessageNotFound: it is not blocked.
        """
        self._store.check_owner()
        journalled = with_note(f"{kind} {name}", note)
        return self._ledger.rules.unblock(kind, name, actor=actor or default_actor(), journalled=journalled)

    def _block(
        self, kind: RuleKind, name: str, task: str, seconds: float | None, actor: str, note: str
    ) -> Rule:
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ConfigurationError(f"a block cannot last {seconds} seconds")
        self._store.check_owner()
        actor, lasts_ms = actor or default_actor(), max(1, round(seconds * 1000)) if seconds else 0
        journalled = with_note(f"{kind} {name}" + (f" for {seconds:g} s" if seconds else ""), note)
        self._ledger.rules.block(
            kind, name, task=task, lasts_ms=lasts_ms, actor=actor, note=note, journalled=journalled
        )
        now = self._queries.now_ms() / 1000
        until = now + seconds if seconds else None
        return Rule(kind=kind, name=name, task=task, since=now, until=until, actor=actor, note=note)

    # --- policies (EMS-9) ----------------------------------------------------------------------

    def policies(self) -> PolicyList:
        """Return the policy of every guarded task, and of every task or queue that has one of its own."""
        self._store.check_owner()
        overrides, complaints = Overrides.read(*stored.read(self._ledger, self._ledger.keys.policy)[:2])
        guarded = self._store.guarded_tasks()
        shown = (name for name in guarded if not name.startswith("celery."))
        names = sorted({*shown, *overrides.by_task})
        settings = self._store.settings
        tasks = [_task_policy(name, guarded.get(name), overrides, settings) for name in names]
        queues = sorted({*(settings.queues or {}), *overrides.by_queue})
        tasks += [_queue_policy(queue, overrides, settings) for queue in queues]
        return PolicyList(version=overrides.version, tasks=tasks, ignored=[*map(str, complaints)])

    def set_policy(
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
            task: its name, ``*``, or ``queue:NAME`` for all messages of a queue (WAS-3).
            if_version: change nothing unless this is still the version.
            force: even if this app guards no task of that name, or no such queue is known.

        Raises:
            ConfigurationError: unknown option or impossible value.
            MessageNotFound: this app guards no such task.
            PolicyConflict: another person changed a policy since ``if_version``.
        """
        check_options(options, f"policy of {task}", OVERRIDABLE)
        if not options:
            raise ConfigurationError(f"policy of {task}: no option given; there are {', '.join(OVERRIDABLE)}")
        if task == stored.VERSION:
            raise ConfigurationError(f"a task named {task!r} cannot be overridden: the name is taken")
        if not force and task.startswith(A_QUEUE):
            self._store.refuse_unless_known(task.removeprefix(A_QUEUE), "--force sets it all the same")
        elif not force and task != EVERY_TASK:
            self._store.refuse_unless_guarded(task, "--force sets it all the same")
        journalled = "set " + " ".join(f"{name}={shown(value)}" for name, value in options.items())
        who = actor or default_actor(), with_note(journalled, note)
        return self._change(task, lambda entry: {**(entry or {}), **options}, who, if_version)

    def unset_policy(
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
            PolicyConflict: another person changed a policy since ``if_version``.
        """

        def without(entry: Options | None) -> Options:
            missing = [name for name in options if name not in (entry or {})]
            if entry is None or missing:
                what = ", ".join(missing) or "nothing"
                raise MessageNotFound(f"policy of {task}: {what} is{' not' if missing else ''} overridden")
            return {name: value for name, value in entry.items() if options and name not in options}

        who = actor or default_actor(), with_note(f"unset {' '.join(options) or 'everything'}", note)
        return self._change(task, without, who, if_version)

    def _change(
        self,
        task: str,
        edit: Callable[[Options | None], Options],
        who: tuple[str, str],
        if_version: int | None,
    ) -> PolicyChange:
        """Edit one entry of the newest version; ``edit`` gets None where there is none."""
        self._store.check_owner()
        for attempt in range(1, ATTEMPTS + 1):
            version, raw, _ = stored.read(self._ledger, self._ledger.keys.policy)
            options = edit(entry_of(raw[task]) if task in raw else None)
            expected = version if if_version is None else if_version
            try:
                version = self._ledger.rules.set(task, json.dumps(options) if options else "", expected, *who)
            except PolicyConflict:
                if if_version is not None or attempt == ATTEMPTS:
                    raise
            else:
                return PolicyChange(version, task, options)
        raise AssertionError("the last attempt returns or raises")

    # --- fleet gate (NEW-1) --------------------------------------------------------------------

    def gate(self) -> GateRecord:
        """Return how the fleet gate stands: closed while too many workers have died for deaths to convict."""
        self._store.check_owner()
        return self._queries.gate()

    def lift_gate(self, *, actor: str = "", note: str = "") -> GateRecord:
        """Let deaths convict again; those that closed the gate are not counted any more.

        Messages that died with their workers meanwhile are still convicted by a trial only.

        Raises:
            MessageNotFound: it is not closed.
        """
        self._store.check_owner()
        actor = actor or default_actor()
        if not self._ledger.fleet.lift_gate(actor, note):
            raise MessageNotFound("the fleet gate is not closed")
        signals.fleet_gate_lifted.send(sender=None, actor=actor, note=note)
        return self._queries.gate()


def shown(value: Any) -> str:
    """Return a value of an option as people type it."""
    return "none" if value is None else str(value)


def with_note(deed: str, note: str) -> str:
    """Return the note of the journal: what was done, and the person's note."""
    return f"{deed}: {note}" if note else deed


def _task_policy(name: str, task: PoisonTask | None, overrides: Overrides, settings: Settings) -> TaskPolicy:
    if task is None:
        own = overrides.by_task.get(name, {})
        return TaskPolicy(task=name, values=own, origins=dict.fromkeys(own, "override"), guarded=False)
    policy = Policy.of(task, settings, overrides.of(name))
    values = {option: getattr(policy, option) for option in OVERRIDABLE}

    def origin(option: str) -> str:
        for holder, said in ((name, "override"), (EVERY_TASK, f"override {EVERY_TASK}")):
            if option in overrides.by_task.get(holder, {}):
                return said
        return "code" if option in own_options(task) else "setting"

    origins = {option: origin(option) for option in OVERRIDABLE}
    return TaskPolicy(task=name, values=values, origins=origins, guarded=True)


def _queue_policy(queue: str, overrides: Overrides, settings: Settings) -> TaskPolicy:
    in_code, own = (settings.queues or {}).get(queue, {}), overrides.by_queue.get(queue, {})
    values = {name: value for name, value in {**in_code, **own}.items() if name in OVERRIDABLE}
    origins = {name: "override" if name in own else "setting" for name in values}
    return TaskPolicy(task=A_QUEUE + queue, values=values, origins=origins, guarded=False)
