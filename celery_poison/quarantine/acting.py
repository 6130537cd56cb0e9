"""What a person pauses, and decides about one message: the order of its steps, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from celery.utils.log import get_logger

from celery_poison.basics.text import count_of, span
from celery_poison.errors import (
    ConfigurationError,
    IllegalTransition,
    LedgerUnavailable,
    MessageNotFound,
    PoisonError,
    SecondPersonNeeded,
)
from celery_poison.ledger import policies as stored
from celery_poison.ledger.fleet import Fact, Notice, leave_notices
from celery_poison.ledger.policies import Pause, Scope
from celery_poison.model import MessageRecord, Record
from celery_poison.quarantine.owner import default_actor, refuse_unless_kept
from celery_poison.quarantine.rules import Rules, with_note
from celery_poison.quarantine.search import Lookup
from celery_poison.quarantine.suspects import VERBS, Suspects
from celery_poison.rules.destinations import where_sent

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Record):
    """What became of one message: done, or refused for a reason.

    ``mid`` is empty if it was not found. Of what a release held back, both ids are the one that was given.
    """

    mid: str
    id: str
    task: str
    done: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One message that is reserved for one person's decision.

    Attributes:
        number: of the decision; a released copy bears it.
    """

    record: MessageRecord
    number: int
    actor: str
    note: str

    def announce(self, signal: Any) -> None:
        """Send one of our signals about it."""
        if not signal.receivers:
            return
        signal.send(sender=None, message=self.record.as_dict(), actor=self.actor, note=self.note)


#: Hears of each outcome at once, so that nothing is forgotten when Redis goes away in the middle.
Listener = Callable[[Outcome], object]
Outcomes = list[Outcome]


def heard(outcomes: Iterable[Outcome], listener: Listener | None) -> Outcomes:
    """Return outcomes, each of which ``listener`` hears of as soon as it is known."""
    found: Outcomes = []
    for outcome in outcomes:
        found.append(outcome)
        if listener is not None:
            listener(outcome)
    return found


def reason_of(error: Exception) -> str:
    """Return why an act was refused."""
    return str(error) if isinstance(error, PoisonError) else f"{type(error).__name__}: {error}"


def whole(raw: dict[str, bytes]) -> dict[str, bytes]:
    """Return the hash of a message as it is; IllegalTransition if its body is at its named destination."""
    if "sent_at" in raw:
        raise IllegalTransition(where_sent(raw["destination"].decode()))
    return raw


#: Seconds for which a wish that needs two persons waits for the second.
ASKED_FOR = 3600.0
#: What Flower adds to the name of its user.
IN_FLOWER = " (flower)"
_TYPED = {"schedule": "release --after TIME"}


class Chosen(list[str]):
    """Ids, and the words of the command line that choose them: two who use the same mean the same."""

    def __init__(self, ids: Iterable[str], words: str) -> None:
        super().__init__(ids)
        self.words = words


def several(ids: Iterable[str]) -> Iterable[str]:
    """Return ids as they are.

    Raises:
        TypeError: they are one text: its characters would be taken for ids.
    """
    if isinstance(ids, (str, bytes)):
        raise TypeError(f"ids is to be a list of ids, not a single one: write [{ids!r}]")
    return ids


#: Acts of one atomic step, for which nothing is reserved; and those of which a worker tells Flower.
_AT_ONCE, _NOTICED = ("restore", "purge", "schedule", "unschedule"), frozenset(Fact)


#: Suspects that are asked for in one go, before each is waited for.
_ASKED_FOR_AT_ONCE = 1000


def taken_out(actor: str, note: str) -> str:
    """Return why a suspect is in quarantine that a person has taken there."""
    return with_note(f"taken out of its trial by {actor}", note)


class Acting(Rules):
    """Pauses and resumes, and decides about messages one after the other.

    Raises, ``actor`` and ``note`` as of ``Quarantine``. Ids in a single text are a ``TypeError``.
    """

    # --- pauses --------------------------------------------------------------------------------

    def pauses(self) -> list[Pause]:
        """Return what is paused, the oldest pause first."""
        self.check_owner()
        return stored.holding(self._ledger)

    def pause_queue(self, queue: str, *, actor: str = "", note: str = "", force: bool = False) -> Pause:
        """Let no worker consume ``queue`` any more; its messages stay where they are.

        Args:
            force: even if no worker consumes such a queue and this app declares none.

        Raises:
            MessageNotFound: no such queue is known.
            ConfigurationError: ``poison_observe_only``.
        """
        self._refuse_if_observing()
        if not force:
            self._refuse_unless_known(queue, "force pauses it all the same")
        return self._pause(Scope.QUEUE, queue, actor, note)

    def pause_task(self, task: str, *, actor: str = "", note: str = "", force: bool = False) -> Pause:
        """Let no message of ``task`` begin any more: they are parked in the ledger, without a slot.

        Args:
            force: even if this app guards no task of that name.

        Raises:
            MessageNotFound: this app guards no such task.
            ConfigurationError: ``poison_observe_only``.
        """
        self._refuse_if_observing()
        if not force:
            self._refuse_unless_guarded(task, "force pauses it all the same")
        return self._pause(Scope.TASK, task, actor, note)

    def resume_queue(self, queue: str, *, worker: str = "", actor: str = "", note: str = "") -> list[Pause]:
        """Let ``queue`` be consumed again, also by who suspended itself; return what is over now.

        Args:
            worker: name of a node: only its suspension ends, and a pause of the queue stays.

        Raises:
            MessageNotFound: nothing of that is paused.
        """
        actor = actor or default_actor()
        found = [pause for pause in self.pauses() if pause.name == queue and pause.scope is not Scope.TASK]
        if worker:
            found = [pause for pause in found if pause.worker == worker]
        for pause in found:
            if pause.scope is Scope.QUEUE:
                self._ledger.resume(Scope.QUEUE, queue, actor=actor, said=with_note(f"queue {queue}", note))
            else:
                self._ledger.end_suspension(pause.worker, queue, worker=pause.worker, actor=actor, note=note)
        if not found:
            whose = f" by {worker}" if worker else ""
            raise MessageNotFound(f"queue {queue} is not paused{whose}")
        return found

    def resume_task(self, task: str, *, actor: str = "", note: str = "") -> list[Pause]:
        """Let the messages of ``task`` go on; return the pause that is over now.

        Raises:
            MessageNotFound: it is not paused.
        """
        found = [pause for pause in self.pauses() if (pause.scope, pause.name) == (Scope.TASK, task)]
        said = with_note(f"task {task}", note)
        self._ledger.resume(Scope.TASK, task, actor=actor or default_actor(), said=said)
        return found

    def _pause(self, scope: Scope, name: str, actor: str, note: str) -> Pause:
        if not name:
            raise ConfigurationError(f"name the {scope}")
        self.check_owner()
        actor, said = actor or default_actor(), with_note(f"{scope} {name}", note)
        self._ledger.pause(scope, name, actor=actor, note=note, said=said)
        now = self.queries.now_ms() / 1000
        return Pause(scope=scope, name=name, since=now, actor=actor, note=note)

    def _refuse_if_observing(self) -> None:
        if self._plugin.settings.observe_only:
            raise ConfigurationError(
                "poison_observe_only is set: workers hold nothing back, and pause nothing"
            )

    # --- messages ------------------------------------------------------------------------------

    def _agreed(self, verb: str, ids: Iterable[str], actor: str, note: str, to: str = "") -> Sequence[str]:
        """Return the ids of a large act once a second person has asked for the same; see ``Chosen``.

        Raises:
            SecondPersonNeeded: only one has, which is on record now.
        """
        ids = ids if isinstance(ids, list) else [*several(ids)]
        least = self._plugin.settings.second_person
        if least is None or (messages := len(set(ids))) < least:
            return ids
        words = ids.words if isinstance(ids, Chosen) else ""
        act = "\n".join((verb, to, words or " ".join(sorted(set(ids)))))
        person = actor.removesuffix(IN_FLOWER).partition("@")[0].casefold()
        typed = " ".join(filter(None, (_TYPED.get(verb, verb), words or "ID...", to and f"--to {to}")))
        said = with_note(f"{typed} ({count_of(messages, 'message')})", note)
        wish = {"person": person, "actor": actor, "act": typed, "messages": messages, "note": note}
        agreed, first, now = self._ledger.ask(act, wish, said=said, keep=ASKED_FOR)
        if agreed:
            return ids
        raise SecondPersonNeeded(
            f"nothing is done yet: poison_second_person={least} wants two persons to ask for the {verb} of"
            f" {count_of(messages, 'message')}. {first.actor} has asked."
            f" Within {span(first.until - now)} {first.how}"
        )

    def _each(
        self,
        ids: Iterable[str],
        verb: str,
        actor: str,
        note: str,
        act: Callable[[Case], None],
        on_outcome: Listener | None = None,
    ) -> Outcomes:
        ids = several(ids)
        self.check_owner()
        lookup, actor = Lookup(self.queries), actor or default_actor()
        asked: dict[str, MessageRecord] = {}
        if verb in ("purge", "schedule"):
            ids = self._agreed(verb, ids, actor, note)
        elif verb in VERBS:
            ids = [*ids]
            first = ids[:_ASKED_FOR_AT_ONCE]
            asked = self._suspects.ask_for(first, lookup.find_each(first), taken_out(actor, note))

        def find(id: str) -> MessageRecord:
            # A suspect that was asked for may have come to quarantine since the index of that was read.
            return asked.get(id) or lookup.find(id, whole=True)

        return heard((self._decide(find, id, verb, actor, note, act) for id in ids), on_outcome)

    def _decide(
        self,
        find: Callable[[str], MessageRecord],
        id: str,
        verb: str,
        actor: str,
        note: str,
        act: Callable[[Case], None],
    ) -> Outcome:
        """Act on one message; every trouble but a lost Redis is an outcome."""
        found = {"mid": "", "id": id, "task": ""}
        try:
            record = find(id)
            found = {"mid": record.mid, "id": record.id, "task": record.task}
            if verb in _AT_ONCE:
                act(Case(record, 0, actor, note))
            else:
                self._reserved(record, verb, actor, note, act)
        except LedgerUnavailable:
            raise
        except Exception as error:
            return Outcome(**found, done=False, error=reason_of(error))
        if verb in _NOTICED:
            self._leave_notices(verb, [record])
        return Outcome(**found, done=True)

    def _reserved(
        self, record: MessageRecord, verb: str, actor: str, note: str, act: Callable[[Case], None]
    ) -> None:
        """Act on a message in quarantine while nobody else can."""
        record = self._suspects.take(record, verb, taken_out(actor, note))
        refuse_unless_kept(record, verb)
        number = self._ledger.decide(record.mid, verb, actor, note)
        try:
            act(Case(record, number, actor, note))
        except BaseException:
            self._ledger.undecide(record.mid, number)  # open to everybody again
            raise

    def _leave_notices(self, verb: str, records: Iterable[MessageRecord]) -> None:
        """Let a live worker send the events for it; the decision stands whether that works or not."""
        notices = (Notice(each.id, Fact(verb), each.story, each.mid) for each in records)
        try:
            leave_notices(self._ledger, notices)
        except LedgerUnavailable as error:
            logger.debug("celery_poison: the event of %s will not be sent: %s", verb, error)

    @cached_property
    def _suspects(self) -> Suspects:
        return Suspects(self._app, self._ledger, self.queries)

    def _kept(self, mid: str) -> dict[str, bytes]:
        return whole(self._row(mid))

    def _row(self, mid: str) -> dict[str, bytes]:
        """Return the whole hash of a message; its body is empty if it is at its named destination."""
        raw = self.queries.message(mid)
        if not raw:
            raise MessageNotFound(f"no message {mid!r} in quarantine")
        return {"body": b"", **raw}

    def _is_registered(self, task: str) -> bool:
        return task in self._app.tasks or task in self._all_tasks

    @cached_property
    def _all_tasks(self) -> frozenset[str]:
        # What a worker would load at its start: this process may not have needed those modules so far.
        self._app.loader.import_default_modules()
        return frozenset(self._app.tasks)
