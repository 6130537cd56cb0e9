"""One class for every act on quarantined messages; the command line, Flower and Python share it."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from celery import Celery

from celery_poison import signals
from celery_poison.errors import IllegalTransition, LedgerUnavailable, MessageNotFound, PoisonError
from celery_poison.ledger.queries import Queries
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.filters import Filter
from celery_poison.quarantine.parcel import parcel_of
from celery_poison.quarantine.publish import Publisher
from celery_poison.quarantine.result import store_failure
from celery_poison.records import MessageRecord, Parcel
from celery_poison.states import Event, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one message of an act: done, or refused for a reason."""

    mid: str
    id: str
    task: str
    done: bool
    error: str = ""


class Quarantine:
    """Messages in quarantine, and what a person can do about them (SAP-7).

    Args:
        app: the Celery app; the plugin is installed on it if it is not yet.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses, and loses nothing then.

    >>> Quarantine(app).release([record.mid], actor="ann", note="fixed in 1.2.3")
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._plugin = plugin_of(app)
        self._ledger = self._plugin.open_ledger()
        self.queries = Queries(self._ledger)

    # --- reading -------------------------------------------------------------------------------

    def list(
        self,
        *,
        state: State | str = State.NDLV,
        candidates: bool = False,
        where: Filter | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> builtins.list[MessageRecord]:
        """Return messages in quarantine, newest first.

        Args:
            state: NDLV (in quarantine), FAIL (given up), TBDL or DLNG (with a history).
            candidates: the candidates instead, oldest flag first.
            where: only messages that match.
            limit, offset: paging; None: all.
        """
        records = self._records(State(state), candidates)
        matching = (record for record in records if where is None or where.matches(record))
        return [*islice(matching, offset, None if limit is None else offset + limit)]

    def _records(self, state: State, candidates: bool) -> Iterator[MessageRecord]:
        if candidates:
            return self.queries.candidates()
        if state in (State.NDLV, State.FAIL):
            return self.queries.kept(state)
        return (record for record in self.queries.candidates() if record.state == state)

    def get(self, id: str) -> MessageRecord:
        """Return the record of a message, by its mid or its task id.

        Raises:
            MessageNotFound: the ledger knows no such message (healthy ones leave no record).
        """
        raw = self.queries.message(id)
        if raw:
            return _record(raw)
        for state in (State.NDLV, State.FAIL):
            for record in self.queries.kept(state):
                if record.id == id:
                    return record
        lineage = self.queries.lineage(id)
        if lineage is not None:
            return lineage
        raise MessageNotFound(f"no message {id!r}: neither in quarantine, nor given up, nor a candidate")

    def parcel(self, mid: str) -> Parcel:
        """Return the original message as it was received.

        Raises:
            MessageNotFound: quarantine keeps no such message.
        """
        raw = self.queries.message(mid)
        if not raw:
            raise MessageNotFound(f"no message {mid!r} in quarantine")
        return parcel_of(raw)

    def select(self, where: Filter) -> builtins.list[MessageRecord]:
        """Return the messages in quarantine that an act with this filter would touch."""
        return self.list(where=where)

    # --- acting --------------------------------------------------------------------------------

    def release(
        self, ids: Iterable[str], *, actor: str = "", note: str = "", force: bool = False
    ) -> builtins.list[Outcome]:
        """Publish the stored originals to their own queues; they run on probation (TBDL).

        Args:
            ids: mids or task ids.
            actor: who decided; note: why. Both are journalled.
            force: release even if no task of that name is registered in this app.
        """
        with Publisher(self._app, self._plugin.settings.quarantine_queue) as publisher:
            return self._each(
                ids, "release", actor, lambda r, n: self._release(publisher, r, n, actor, note, force)
            )

    def fail(self, ids: Iterable[str], *, actor: str = "", note: str = "") -> builtins.list[Outcome]:
        """Give messages up: their callers get a failure, chords and errbacks are resolved (FAIL)."""
        return self._each(ids, "fail", actor, lambda r, n: self._fail(r, actor, note))

    def discard(self, ids: Iterable[str], *, actor: str = "", note: str = "") -> builtins.list[Outcome]:
        """Give messages up without telling anybody (FAIL); nobody should be waiting for them."""
        return self._each(ids, "discard", actor, lambda r, n: self._give_up(r, Event.DISCARDED, actor, note))

    def _each(
        self, ids: Iterable[str], verb: str, actor: str, act: Callable[[MessageRecord, int], None]
    ) -> builtins.list[Outcome]:
        return [self._one(id, verb, actor, act) for id in ids]

    def _one(self, id: str, verb: str, actor: str, act: Callable[[MessageRecord, int], None]) -> Outcome:
        try:
            record = self.get(id)
        except MessageNotFound as error:
            return Outcome(mid="", id=id, task="", done=False, error=str(error))
        told = {"mid": record.mid, "id": record.id, "task": record.task}
        try:
            number = self._reserve(record, verb, actor)
            try:
                act(record, number)
            except BaseException:
                self._ledger.undecide(record.mid)
                raise
        except LedgerUnavailable:
            raise
        except PoisonError as error:
            return Outcome(**told, done=False, error=str(error))
        except Exception as error:
            return Outcome(**told, done=False, error=f"{type(error).__name__}: {error}")
        return Outcome(**told, done=True)

    def _reserve(self, record: MessageRecord, verb: str, actor: str) -> int:
        if record.state in (State.TBDL, State.DLNG):
            raise IllegalTransition(f"the message is in state {record.state}, it is not in quarantine")
        return self._ledger.decide(record.mid, verb, actor)

    def _release(
        self, publisher: Publisher, record: MessageRecord, number: int, actor: str, note: str, force: bool
    ) -> None:
        if not force and record.task not in self._app.tasks:
            raise IllegalTransition(
                f"no task {record.task!r} is registered in this app, so no worker could run the message:"
                " load the module that defines it, or use force"
            )
        publisher.publish(self.parcel(record.mid), record.queue, number)
        self._ledger.released(record.mid, record.id, number, actor, note)
        signals.message_released.send(sender=None, message=record.as_dict(), actor=actor, note=note)

    def _fail(self, record: MessageRecord, actor: str, note: str) -> None:
        store_failure(self._app, record, self.parcel(record.mid), note)
        self._give_up(record, Event.FAILED, actor, note)
        signals.message_failed.send(sender=None, message=record.as_dict(), actor=actor, note=note)

    def _give_up(self, record: MessageRecord, event: Event, actor: str, note: str) -> None:
        self._ledger.give_up(record.mid, event, actor, note)


def _record(raw: dict[str, Any]) -> MessageRecord:
    words = {name: value.decode("utf-8", "replace") for name, value in raw.items() if name != "body"}
    return MessageRecord.from_hash(words, State(words["state"]))
