"""A person adds holds by value, and lifts them (NEW-27)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from celery_poison import causes
from celery_poison.basics.text import count_of, nearest
from celery_poison.desk.care import Care
from celery_poison.desk.decisions import Chosen, Decisions, Listener, Outcome
from celery_poison.desk.finder import Finder
from celery_poison.desk.owner import default_actor
from celery_poison.desk.releasing import HELD_BACK, Releases
from celery_poison.desk.rules import with_note
from celery_poison.desk.search import Condition as Field
from celery_poison.desk.search import Filter
from celery_poison.desk.store import Store
from celery_poison.errors import ConfigurationError, MessageNotFound, PoisonError
from celery_poison.extensions.by_value.conditions import Condition, call_of, parse_all
from celery_poison.extensions.by_value.signatures import parameters_of
from celery_poison.extensions.by_value.value_holds import EVERY_TASK, ValueHold, ValueHolds, brought_by
from celery_poison.keep.body import json_of
from celery_poison.keep.stored_message import stored_message
from celery_poison.ledger import Ledger
from celery_poison.model import MessageRecord, Record
from celery_poison.states import State

#: Messages in quarantine, the newest, that are counted: each look at the holds reads them.
COUNTED = 2000
#: How often a lift looks for what came while it released the others: some task may never stop being sent.
PASSES = 10
_HELD = Filter((Field("cause", "=", causes.HELD),))


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldNow(Record):
    """A hold by value as it stands.

    Attributes:
        over: its time has passed; what it brought to quarantine is there still.
        quarantined, waiting: messages that it keeps, in quarantine and in place.
        is_more: there may be more in quarantine: only :data:`COUNTED` are counted.
    """

    hold: ValueHold
    over: bool
    quarantined: int
    waiting: int
    is_more: bool = False

    @property
    def is_spent(self) -> bool:
        """Whether its time has passed, and it keeps nothing: nobody needs to lift it."""
        return self.over and not (self.quarantined or self.waiting)

    @property
    def in_quarantine(self) -> str:
        return ("at least " if self.is_more else "") + count_of(self.quarantined, "message")

    def as_dict(self) -> dict[str, Any]:
        kept = {"over": self.over, "quarantined": self.quarantined, "waiting": self.waiting}
        return {**self.hold.as_dict(), **kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted(Record):
    """The end of a hold, and of its messages.

    Attributes:
        lifted: it catches nothing any more; False: not all could be released, and it stays in force.
        outcomes: of each message that it had brought to quarantine.
        kept: messages that stay there, since another hold catches them, too, or may.
    """

    number: int
    lifted: bool
    outcomes: Sequence[Outcome]
    kept: int


def holds_now(ledger: Ledger) -> tuple[list[HoldNow], dict[int, int]]:
    """Return all holds by value, the oldest first; and what lifted ones left in quarantine, by number."""
    holds = ValueHolds(ledger)
    those, now = holds.all()
    records = [*Finder(ledger).records(_HELD, State.NDLV, limit=COUNTED + 1)]
    numbers = Counter(brought_by(record.reason) for record in records[:COUNTED])
    waits = [*holds.waiting().values()] if any(hold.waits for hold in those) else []
    stand = [
        HoldNow(
            hold=hold,
            over=hold.is_over(now),
            quarantined=numbers[hold.number],
            waiting=waits.count(hold.number),
            is_more=len(records) > COUNTED,
        )
        for hold in those
    ]
    known = {0, *(hold.number for hold in those)}
    return stand, {number: messages for number, messages in numbers.items() if number not in known}


class ValueHoldDesk:
    """Holds and lifts. ``Quarantine`` has these methods; raises, ``actor`` and ``note`` are as of that."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holds = ValueHolds(store.ledger)

    def value_holds(self) -> list[HoldNow]:
        """Return the holds by value, the oldest first."""
        self._store.check_owner()
        return holds_now(self._store.ledger)[0]

    def hold(
        self,
        where: str | Iterable[str],
        *,
        task: str = EVERY_TASK,
        wait: bool = False,
        seconds: float | None = None,
        actor: str = "",
        note: str = "",
        force: bool = False,
    ) -> ValueHold:
        """Let no message begin any more whose arguments fall under ``where``.

        Args:
            where: conditions as ``"project_id=42"``, which must all hold.
            task: of guarded tasks of this name, which may be a pattern.
            wait: they wait in the ledger, and do not go to quarantine.
            seconds: for how long; None: until a person lifts it.
            force: even if no guarded task of this app has such an argument.

        Raises:
            ConfigurationError: a condition is none, or ``poison_observe_only``.
            MessageNotFound: no guarded task has such an argument.
        """
        if self._store.settings.observe_only:
            raise ConfigurationError("poison_observe_only is set: workers hold nothing back")
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ConfigurationError(f"a hold cannot last {seconds} seconds")
        self._store.check_owner()
        typed, task = parse_all(where), task.strip() or EVERY_TASK
        who: dict[str, Any] = {"actor": actor or default_actor(), "note": note}
        new = ValueHold(number=0, where=typed, task=task, waits=wait, **who)
        if not force:
            self._refuse_unless_known(new)
        lasts_ms = max(1, round(seconds * 1000)) if seconds else 0
        lasting = f" for {seconds:g} s" if seconds else ""
        number = self._holds.add(
            typed,
            task=task,
            waits=wait,
            lasts_ms=lasts_ms,
            **who,
            journalled=with_note(f"{new.words}{lasting}", note),
        )
        return next(hold for hold in self._holds.all()[0] if hold.number == number)

    def lift(
        self,
        number: int,
        *,
        actor: str = "",
        note: str = "",
        care: Care | None = None,
        on_outcome: Listener | None = None,
        on_progress: Callable[[str], object] | None = None,
        **how: Any,
    ) -> Lifted:
        """Release what a hold brought to quarantine, and catch nothing by it any more; what waits goes on.

        It stays in force until all is released, also what comes in the meantime. Where a message cannot be
        released, where the release stops, as after a death of the canary, and when this process dies, it
        stays in force: the same again goes on with what is left. What a worker catches after the end, since
        it has not heard of that, stays in quarantine, and ``status`` names it: the same again releases it.

        Args:
            care, on_progress, how: as of ``release``.

        Raises:
            MessageNotFound: there is no such hold, and nothing in quarantine that it brought there.
            SecondPersonNeeded: as of ``release``; the hold is in force.
        """
        self._store.check_owner()
        those, now = self._holds.all()
        found = next((hold for hold in those if hold.number == number), None)
        others = [hold for hold in those if hold.number != number and not hold.is_over(now)]
        outcomes: list[Outcome] = []
        who: dict[str, Any] = {"actor": actor or default_actor(), "note": note}
        more = {**how, "care": care, "on_outcome": on_outcome, "on_progress": on_progress}
        words = f"--filter 'cause=held reason=\"hold {number}: *\"'", f"hold lift {number}"
        tried, least, is_agreed = set[str](), self._store.settings.second_person, False
        for _ in range(PASSES):
            left, kept = self._to_release(number, found, those, others)
            if found is None and not (left or kept or tried):
                raise MessageNotFound(f"there is no hold {number}: `hold list` shows them")
            mids = [mid for mid in left if mid not in tried]
            if not mids or any(each.error.startswith(HELD_BACK) for each in outcomes):
                break
            outcomes += self._releases.release(Chosen(mids, *words, is_agreed=is_agreed), **who, **more)
            is_agreed = is_agreed or (least is not None and len(mids) >= least)
            tried.update(mids)
            more["care"] = replace(care, canary=False) if care else None  # one was well
        else:
            left, kept = self._to_release(number, found, those, others)
        is_lifted = found is None or not tried.intersection(left)
        if found is not None and is_lifted:
            with suppress(MessageNotFound):  # another lift has ended it
                journalled = with_note(f"hold {number}: {found.words}", note)
                self._holds.lift(number, actor=who["actor"], journalled=journalled)
        return Lifted(number=number, lifted=is_lifted, outcomes=outcomes, kept=kept)

    @property
    def _releases(self) -> Releases:
        return Releases(self._store, Decisions(self._store))

    def _to_release(
        self,
        number: int,
        hold: ValueHold | None,
        those: Sequence[ValueHold],
        others: Sequence[ValueHold],
    ) -> tuple[list[str], int]:
        """Return the messages that a lift of this hold releases, and how many other holds catch, too, or may.

        Its own is what it brought there, and what it caught, too, of a hold that was lifted before it.
        """
        known, mids, kept = {each.number for each in those}, [], 0
        for record in Finder(self._store.ledger).records(_HELD, State.NDLV):
            by = brought_by(record.reason)
            is_left_over = hold is not None and by not in known and self._falls_under([hold], record)
            if not (by == number or is_left_over):
                continue
            if others and self._falls_under(others, record):
                kept += 1
            else:
                mids.append(record.mid)
        return mids, kept

    def _falls_under(self, holds: Sequence[ValueHold], record: MessageRecord) -> bool:
        """Whether one of these holds catches a message, as far as is seen here: where in doubt, it does."""
        checks = [check for hold in holds if (check := hold.check(self._store.app, record.task))]
        if not (checks and self._store.is_registered(record.task)):
            return bool(checks)  # the workers know the signature of the task
        try:
            call = call_of(json_of(stored_message(self._store.kept(record.mid))))
        except MessageNotFound:  # it is gone
            return False
        except PoisonError:  # it is not in JSON
            return True
        return call is None or any(check.holds(*call) for check in checks)

    def tasks_of(self, hold: ValueHold) -> list[str]:
        """Return the guarded tasks whose messages may fall under a hold, by name."""
        return [task for task in self._tasks() if hold.check(self._store.app, task) is not None]

    def _tasks(self) -> list[str]:
        return sorted(task for task in self._store.guarded_tasks() if not task.startswith("celery"))

    def _refuse_unless_known(self, new: ValueHold) -> None:
        """Refuse what catches nothing: behind a typing error messages would run."""
        app, tasks, cure = self._store.app, self._tasks(), " (--force holds it all the same)"
        named = [task for task in tasks if fnmatchcase(task, new.task)]
        if not named:
            raise MessageNotFound(f"this app guards no task {new.task!r}{nearest(new.task, tasks)}{cure}")
        has_none = f"{named[0]} has no argument" if len(named) == 1 else "no guarded task has an argument"
        known = [parameters_of(app, task) for task in named]
        names = {name for each in known for name in each.names}
        for name in (Condition.parse(text).path[0] for text in new.where):
            # Where one of many tasks takes any name, a typing error is as likely as that.
            if name not in names and not all(each.is_open for each in known):
                raise MessageNotFound(f"{has_none} {name!r}{nearest(name, names)}{cure}")
        if not self.tasks_of(new):
            raise MessageNotFound(f"no guarded task has all of these arguments: {new.words}{cure}")
