"""A decision about one message: the order of its steps, and what became of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from celery.utils.log import get_logger

from celery_poison.basics.text import count_of, span
from celery_poison.desk.lookup import Lookup
from celery_poison.desk.owner import refuse_unless_kept
from celery_poison.desk.rules import with_note
from celery_poison.desk.store import Store
from celery_poison.desk.suspects import VERBS, Suspects
from celery_poison.errors import (
    LedgerUnavailable,
    PoisonError,
    SecondPersonNeeded,
)
from celery_poison.ledger.notices import Fact, Notice
from celery_poison.model import MessageRecord, Record

logger = get_logger("celery_poison")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Record):
    """The outcome of an act on one message: done, or refused for a reason.

    ``mid`` is empty if it was not found. Of what a release held back, both ids are the one that was given.
    """

    mid: str
    id: str
    task: str
    done: bool
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One act on messages, as a person asks for it.

    Attributes:
        verb: the act.
        actor, note: the person, and why.
        force: of a release: even if this app has no such task.
        to: of a release: the queue that it goes to; empty: each message's own.
        keep_counts: of a release: strikes and failures are counted on.
        keep_expiry: of a release: what has expired is refused, not published without its expiry.
        yes_run_again: of a release: also what has begun and must not run twice.
    """

    verb: str
    actor: str
    note: str
    force: bool = False
    to: str = ""
    keep_counts: bool = False
    keep_expiry: bool = False
    yes_run_again: bool = False

    @property
    def typed(self) -> str:
        """The act as the command line names it."""
        return "release --after TIME" if self.verb == "schedule" else self.verb

    @property
    def why_taken_out(self) -> str:
        """The reason of a suspect that is in quarantine only since this act is to decide about it."""
        return with_note(f"taken out of its trial by {self.actor}", self.note)


@dataclass(frozen=True, slots=True)
class Reserved:
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


def report_each(outcomes: Iterable[Outcome], listener: Listener | None) -> Outcomes:
    """Return outcomes, each of which ``listener`` hears of as soon as it is known."""
    reported: Outcomes = []
    for outcome in outcomes:
        reported.append(outcome)
        if listener is not None:
            listener(outcome)
    return reported


def reason_of(error: Exception) -> str:
    """Return why an act was refused."""
    return str(error) if isinstance(error, PoisonError) else f"{type(error).__name__}: {error}"


#: Seconds for which a wish that needs two persons waits for the second.
ASKED_FOR = 3600.0
#: What Flower and Django's admin add to the name of their user.
IN_FLOWER, IN_DJANGO = " (flower)", " (django)"


class Chosen(list[str]):
    """Ids, and the words of the command line that choose them: equal words mean the same messages.

    Attributes:
        typed: what is typed for the act, where that is not its name and these words.
        is_agreed: a second person has agreed to the act already; these are the messages that came since.
    """

    def __init__(self, ids: Iterable[str], words: str, typed: str = "", *, is_agreed: bool = False) -> None:
        super().__init__(ids)
        self.words, self.typed, self.is_agreed = words, typed, is_agreed

    @classmethod
    def matching(cls, ids: Iterable[str], text: str) -> Self:
        """Return the ids of what matches a filter; of everything where it is empty."""
        return cls(ids, shlex.join(["--filter", text]) if text else "--all")


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


class Decisions:
    """Decides about messages one after the other, each reserved for one person while it is acted on.

    Args:
        store: the app whose messages they are.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.suspects = Suspects(store.app, store.ledger)

    def each(
        self,
        ids: Iterable[str],
        request: Request,
        act: Callable[[Reserved], None],
        on_outcome: Listener | None = None,
    ) -> Outcomes:
        """Do ``act`` to each message of these ids; return what became of each.

        Raises:
            TypeError: the ids are a single text.
            SchemaMismatch: the ledger belongs to another app.
            SecondPersonNeeded: as :meth:`require_agreement`.
        """
        ids = several(ids)
        self.store.check_owner()
        lookup = Lookup(self.store.queries)
        asked: dict[str, MessageRecord] = {}
        if request.verb in ("purge", "schedule"):
            ids = self.require_agreement(ids, request)
        elif request.verb in VERBS:
            ids = [*ids]
            first = ids[:_ASKED_FOR_AT_ONCE]
            asked = self.suspects.ask_for(first, lookup.find_each(first), request.why_taken_out)

        def find(id: str) -> MessageRecord:
            # A suspect that was asked for may have come to quarantine since the index of that was read.
            return asked.get(id) or lookup.find(id, whole=True)

        return report_each((self._decide(find, id, request, act) for id in ids), on_outcome)

    def require_agreement(self, ids: Iterable[str], request: Request) -> Sequence[str]:
        """Return the ids of a large act once a second person has asked for the same; see ``Chosen``.

        Raises:
            SecondPersonNeeded: only one has, which is on record now.
        """
        ids = ids if isinstance(ids, list) else [*several(ids)]
        least = self.store.settings.second_person
        is_agreed = isinstance(ids, Chosen) and ids.is_agreed
        if least is None or is_agreed or (messages := len(set(ids))) < least:
            return ids
        words, to = ids.words if isinstance(ids, Chosen) else "", request.to
        act = "\n".join((request.verb, to, words or " ".join(sorted(set(ids)))))
        person = request.actor.removesuffix(IN_FLOWER).removesuffix(IN_DJANGO).partition("@")[0].casefold()
        typed = (ids.typed if isinstance(ids, Chosen) else "") or f"{request.typed} {words or 'ID...'}"
        typed += f" --to {to}" if to else ""
        journalled = with_note(f"{typed} ({count_of(messages, 'message')})", request.note)
        whose = {"person": person, "actor": request.actor, "act": typed}
        wish = {**whose, "messages": messages, "note": request.note}
        agreed, first, now = self.store.ledger.decisions.ask(act, wish, journalled=journalled, keep=ASKED_FOR)
        if agreed:
            return ids
        raise SecondPersonNeeded(
            f"nothing is done yet: poison_second_person={least} wants two persons to ask for the"
            f" {request.verb} of {count_of(messages, 'message')}. {first.actor} has asked."
            f" Within {span(first.until - now)} {first.how}"
        )

    def leave_notices(self, verb: str, records: Iterable[MessageRecord]) -> None:
        """Let a live worker send the events for it; the decision stands whether that works or not."""
        notices = (Notice(each.id, Fact(verb), each.story, each.mid) for each in records)
        try:
            self.store.ledger.notices.leave(notices)
        except LedgerUnavailable as error:
            logger.debug("celery_poison: the event of %s will not be sent: %s", verb, error)

    def _decide(
        self, find: Callable[[str], MessageRecord], id: str, request: Request, act: Callable[[Reserved], None]
    ) -> Outcome:
        """Act on one message; every trouble but a lost Redis is an outcome."""
        named = {"mid": "", "id": id, "task": ""}
        try:
            record = find(id)
            named = {"mid": record.mid, "id": record.id, "task": record.task}
            if request.verb in _AT_ONCE:
                act(Reserved(record, 0, request.actor, request.note))
            else:
                self._act_reserved(record, request, act)
        except LedgerUnavailable:
            raise
        except Exception as error:
            return Outcome(**named, done=False, error=reason_of(error))
        if request.verb in _NOTICED:
            self.leave_notices(request.verb, [record])
        return Outcome(**named, done=True)

    def _act_reserved(self, record: MessageRecord, request: Request, act: Callable[[Reserved], None]) -> None:
        """Act on a message in quarantine while no other act can."""
        record = self.suspects.take(record, request.verb, request.why_taken_out)
        refuse_unless_kept(record, request.verb)
        why = request.actor, request.note
        with self.store.ledger.decisions.reserving(record.mid, request.verb, *why) as number:
            act(Reserved(record, number, *why))
