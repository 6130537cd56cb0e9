"""Reading what is in quarantine: lists, groups, one message with all that is known about it, the journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_poison import causes
from celery_poison.basics.calling import gather
from celery_poison.causes import Evidence
from celery_poison.desk.finder import Finder
from celery_poison.desk.lookup import TYPED, Lookup, one_of
from celery_poison.desk.others import Others, others_of
from celery_poison.desk.own_deaths import Death, deaths_of
from celery_poison.desk.search import By, Filter, Group
from celery_poison.desk.sentences import Entry, how_it_ended, standing, why
from celery_poison.desk.store import Store
from celery_poison.errors import IllegalTransition, MessageNotFound
from celery_poison.keep.arguments import Redact, headers_shown
from celery_poison.keep.stored_message import stored_message
from celery_poison.ledger.journal_read import Extent, extent, extract, history
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.rules.failures import KeptFailure
from celery_poison.rules.links import links_of
from celery_poison.states import Event, State, kept_state

# The class has a method named list, which would stand before the type in its annotations.
Records = list[MessageRecord]
Groups = list[Group]
Entries = list[dict[str, str]]

_COUNTS = ("deliveries", "crashes", "strikes", "failures")


class Detail(NamedTuple):
    """Everything that is known about one message.

    Attributes:
        history: the journal's entries about it, oldest first.
        stored: the original message, if it lies in the ledger and not with the broker.
        failure: what its attempts raised, if it is kept for that.
        copy: what is known of its changed copy, if a person has made one.
        observe_only: nothing comes of its deaths (``poison_observe_only``).
        redact: what is not shown of headers and properties (``poison_redact``).
        links: name -> URL, to logs and the like (``poison_links``).
        others: what became of other messages of its task meanwhile; None: it died of nothing.
    """

    record: MessageRecord
    history: Sequence[Entry]
    stored: StoredMessage | None
    failure: KeptFailure | None = None
    copy: Detail | None = None
    observe_only: bool = False
    redact: Redact = ()
    links: Mapping[str, str] = MappingProxyType({})
    others: Others | None = None

    @property
    def deaths(self) -> list[Death]:
        """Its deaths since the last release that the journal has, in their order."""
        return deaths_of(self.history)

    @property
    def headers(self) -> dict[str, Any]:
        """Its headers, as they may be shown."""
        return headers_shown(self.redact, self.stored.headers) if self.stored else {}

    @property
    def properties(self) -> dict[str, Any]:
        """Its properties, as they may be shown."""
        return headers_shown(self.redact, self.stored.properties) if self.stored else {}

    @property
    def story(self) -> str:
        """Return the story of a message, its end, and the story of its changed copy."""
        ended = how_it_ended(self.history) if self.record.state == State.DLVD else ""
        copy = f"Of the copy: {standing(self.copy.record)} {self.copy._own}" if self.copy else ""
        return " ".join(
            filter(None, (ended, why(self.record, self.deaths, observe_only=self.observe_only), copy))
        )

    @property
    def _own(self) -> str:
        """Return the story of a copy: its counts and causes are the original's, if it has ended well."""
        ended = how_it_ended(self.history) if self.record.state == State.DLVD else ""
        return ended or self.story

    def as_dict(self) -> dict[str, Any]:
        """Return the object that ``show --json`` prints, but for the body."""
        shown = {**self.record.as_dict(), "story": self.story, "history": self.history}
        if self.stored is not None:
            shown.update((name, getattr(self.stored, name)) for name in ("content_type", "content_encoding"))
            shown |= {"headers": self.headers, "properties": self.properties}
        if self.failure is not None:
            shown["failure"] = self.failure.as_dict()
        if self.others is not None:
            shown["others"] = {**self.others.as_dict(), "sentence": self.others.sentence}
        return {**shown, "links": {**self.links}} if self.links else shown


class Reading:
    """Queries about the messages in quarantine and their history. Raises as ``Quarantine``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queries = store.queries
        #: Finds and counts by the groups of the ledger.
        self.finder = Finder(store.ledger)

    def list(
        self,
        *,
        state: State | str = State.NDLV,
        candidates: bool = False,
        where: Filter | str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Records:
        """Return messages in quarantine, newest first.

        Args:
            state: NDLV (in quarantine), FAIL (given up), DLNG (running at this moment) or TBDL (waiting;
                only flagged, released and parked ones, since the others are not on record).
            candidates: what is flagged as a candidate instead, oldest flag first.
            where: only messages that match, as ``"task=shop.render age>2h"``.
            limit, offset: paging; None: all.

        Raises:
            ValueError: there is no such state, or nothing in it is on record (DLVD).
            BadFilter: ``where`` is none.
        """
        where = Filter.of(where)
        kept = kept_state(state)
        if not candidates and kept in (State.NDLV, State.FAIL):
            return [*self.finder.records(where, kept, offset=offset, limit=limit)]
        if candidates:
            live = self._queries.candidates()
        else:
            live = self._queries.live() if kept is State.DLNG else self._to_be_delivered()
        return [*islice(where.choose(live), offset, None if limit is None else offset + limit)]

    def _to_be_delivered(self) -> Iterator[MessageRecord]:
        seen = set()
        for record in self._queries.candidates():
            if record.state == State.TBDL:
                seen.add(record.mid)
                yield record
        yield from (record for record in self._queries.waiting() if record.mid not in seen)

    def groups(self, *, where: Filter | str | None = None, by: By | str = By.FINGERPRINT) -> Groups:
        """Return the messages in quarantine, counted by task, cause and fingerprint, the largest group first.

        Args:
            where: only messages that match; ``Filter.of_group(group)`` are those of one group. Beside task,
                cause and fingerprint (by cause: or queue) each message that may match is read.
            by: ``"cause"``: by task and cause only.
        """
        return self.finder.groups(Filter.of(where), By(by))[0]

    def get(self, id: str) -> MessageRecord:
        """Return the record of a message, by its mid or its task id, or how one of these begins.

        By mid this is one look into Redis, by task id a walk through everything that is kept.

        Raises:
            MessageNotFound: the ledger knows no such message (healthy ones leave no record).
            AmbiguousId: several messages in quarantine carry this task id.
        """
        return Lookup(self._queries).find(id)

    def message(self, mid: str) -> StoredMessage:
        """Return the original message as it was received.

        Raises:
            MessageNotFound: quarantine keeps no such message.
            IllegalTransition: it is at its named destination.
        """
        return stored_message(self._store.kept(mid))

    def detail(self, id: str) -> Detail:
        """Return all that is known about a message, also about one that only the journal remembers.

        Raises:
            MessageNotFound: neither ledger nor journal knows it.
            AmbiguousId: several messages in quarantine carry this task id.
        """
        detail = self._detail(id)
        others = others_of(self._queries, detail.record, detail.history)
        return detail._replace(links=links_of(self._store.settings.links, detail.record), others=others)

    def _detail(self, id: str) -> Detail:
        try:
            record = self.get(id)
        except MessageNotFound:
            entries = self.history(id)
            if not entries:
                raise
            return Detail(remembered(entries), entries, None)
        entries = self.history(record.mid if record.quarantined_at else record.id)
        if record.state not in (State.NDLV, State.FAIL):
            return Detail(record, entries, None, observe_only=self._store.settings.observe_only)
        raw = self._store.row(record.mid)
        stored = None if "sent_at" in raw else stored_message(raw)
        copy, redact = self._copy_of(record), self._store.settings.redact
        return Detail(record, entries, stored, KeptFailure.decode(raw.get("failure")), copy, redact=redact)

    def _copy_of(self, record: MessageRecord) -> Detail | None:
        """Return the details of the changed copy of a message, whose task id is the same; None: no copy."""
        if not record.edited_to:
            return None
        kept = self._queries.record(record.edited_to)
        about = [
            entry for entry in self._told_of(record.id, record.first_seen) if entry["mid"] == record.edited_to
        ]
        live = None if kept else self._queries.lineage(record.id)
        copy = kept or (live if live and live.mid == record.edited_to else None)
        if copy is None and about:
            copy = remembered(about)
        return Detail(copy, about, None) if copy else None

    def _told_of(self, id: str, since: float | None = None, until: float | None = None) -> Entries:
        return history(self._store.ledger.client, self._store.ledger.keys, id, since=since, until=until)

    def fingerprint_of(self, id: str) -> tuple[str, str]:
        """Return fingerprint and task of a message in quarantine; raises as :meth:`get`."""
        record = self.get(id)
        if not record.fingerprint:
            raise MessageNotFound(f"message {id!r} is not in quarantine: only there a fingerprint is known")
        if record.cause == causes.FAILURE:
            raise IllegalTransition(
                f"message {id!r} is a kept failure: its fingerprint stands for equal failures, not for equal"
                " arguments; block its task instead"
            )
        return record.fingerprint, record.task

    def history(self, id: str) -> Entries:
        """Return the journal's entries about a task id, the oldest first; [] for none."""
        try:
            record = self.get(id)
        except MessageNotFound:
            entries = self._told_of(id) if id else []
            ids = {entry["id"] for entry in entries}
            whole = id if id in ids or not ids or len(id) < TYPED else one_of(id, ids)
        else:
            whole, until = record.id, record.last_seen if record.state in (State.NDLV, State.FAIL) else None
            entries = self._told_of(whole, record.first_seen, until)
        return [entry for entry in entries if entry["id"] == whole]

    def journal(self, *, after: str = "") -> tuple[Extent, Iterator[dict[str, str]]]:
        """Return how far the journal reaches now, and its entries up to there, oldest first.

        Args:
            after: the id of an entry; only what came later is yielded.

        Raises:
            LedgerUnavailable: Redis is not reachable, now or while the entries are read.
        """
        client, keys = self._store.ledger.client, self._store.ledger.keys
        reach = extent(client, keys)
        return reach, extract(client, keys, after=after, until=reach.last or "0-0")

    def incident_notes(self, incidents: Sequence[str]) -> dict[str, str]:
        """Return sentences of extensions about deaths of workers, by their incidents."""
        plugin, notes = self._store.plugin, dict[str, str]()
        hooks = plugin.extensions.incident_notes
        for incident, note in gather(hooks, plugin.complain, self._store.ledger, incidents):
            notes[incident] = f"{notes.get(incident, '')} {note}".strip()
        return notes


def remembered(history: Sequence[Entry]) -> MessageRecord:
    """Return a message that has no record any more, by its last journal entry."""
    last = history[-1]
    names = ("id", "mid", "task", "queue", "cause", "worker", "incident", *_COUNTS)
    found = MessageRecord.from_hash({name: last[name] for name in names}, State(last["state"]))
    died = [entry.get("evidence", "") for entry in history if entry["event"] == Event.CRASHED]
    evidence = Evidence.decode(died[-1]) if died else found.evidence
    return replace(
        found, evidence=evidence, releases=sum(entry["event"] == Event.RELEASED for entry in history)
    )
