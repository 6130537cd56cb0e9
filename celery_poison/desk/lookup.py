"""Finding one message by its mid or its task id, or by how one of these begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from celery_poison.basics.text import some_of
from celery_poison.errors import MessageNotFound, PoisonError
from celery_poison.ledger.views import Views
from celery_poison.model import MessageRecord
from celery_poison.states import State


class AmbiguousId(PoisonError):
    """Several messages are meant by this: they carry one task id, or their ids begin alike."""


#: Characters of an id that must be typed at least.
TYPED = 4
#: Messages that are named where one of them was meant.
_NAMED = 5


class Lookup:
    """Finds messages for one act.

    By mid this is one look into Redis. The first task id, or beginning of one, costs a walk through all that
    is kept, since no second index is held that could disagree; further ones cost nothing more.
    """

    def __init__(self, queries: Views) -> None:
        self._queries = queries
        self._mids: dict[State, dict[str, list[str]]] = {}

    def find(self, id: str, *, whole: bool = False) -> MessageRecord:
        """Return the message with this mid, else the one with this task id, else whose either begins so.

        A message in quarantine goes before one that waits or runs, and that before one that was given up.

        Args:
            whole: only the whole id will do: for programs, whose ids may begin alike.

        Raises:
            MessageNotFound: the ledger knows no such message (healthy ones leave no record).
            AmbiguousId: several messages in quarantine carry this task id, or several ids begin so.
        """
        record = self._queries.record(id) or self._named(id) or (None if whole else self._beginning(id))
        if record is None:
            short = f"; type at least {TYPED} characters of an id" if not whole and len(id) < TYPED else ""
            sentence = f"no message {id!r}: neither in quarantine, nor given up, nor a candidate{short}"
            raise MessageNotFound(sentence)
        return record

    def find_each(self, ids: Sequence[str]) -> list[MessageRecord | PoisonError]:
        """Find by whole ids as :meth:`find` does, errors as values; mids are read in one round trip."""
        records: list[MessageRecord | PoisonError] = []
        for id, record in zip(ids, self._queries.records(ids), strict=True):
            try:
                records.append(record or self.find(id, whole=True))
            except (MessageNotFound, AmbiguousId) as error:
                records.append(error)
        return records

    def _named(self, id: str) -> MessageRecord | None:
        """Return the message with this task id, or what waits or runs with this mid."""
        if mids := self._index(State.NDLV).get(id):
            return self._queries.record(one_of(id, mids))
        # A released message is a candidate until it has run; its record is kept by task id.
        live = self._queries.lineage(id) or next((r for r in self._live() if id in (r.mid, r.id)), None)
        given_up = [] if live else self._index(State.FAIL).get(id, [])
        return live or (self._queries.record(given_up[0]) if given_up else None)

    def _beginning(self, typed: str) -> MessageRecord | None:
        """Return the one message whose task id or mid begins so."""
        if len(typed) < TYPED:
            return None
        if mids := self._mids_beginning(State.NDLV, typed):
            return self._queries.record(one_of(typed, mids))
        live = {r.mid: r for r in self._live() if r.id.startswith(typed) or r.mid.startswith(typed)}
        if live:
            return live[one_of(typed, live)]
        mids = self._mids_beginning(State.FAIL, typed)
        return self._queries.record(one_of(typed, mids)) if mids else None

    def _mids_beginning(self, state: State, typed: str) -> list[str]:
        index = self._index(state).items()
        return [mid for id, mids in index for mid in mids if id.startswith(typed) or mid.startswith(typed)]

    def _live(self) -> Iterator[MessageRecord]:
        return chain(self._queries.candidates(), self._queries.waiting(), self._queries.live())

    def _index(self, state: State) -> dict[str, list[str]]:
        """Return task id -> mids of everything that is kept, the newest first; read once."""
        if state not in self._mids:
            index: dict[str, list[str]] = defaultdict(list)
            for mid, task_id in self._queries.kept_ids(state):
                index[task_id].append(mid)
            self._mids[state] = dict(index)
        return self._mids[state]


def one_of(typed: str, meant: Collection[str]) -> str:
    """Return the one id that is meant.

    Raises:
        AmbiguousId: there are more.
    """
    if len(meant) > 1:
        raise AmbiguousId(
            f"{typed!r} may be any of {len(meant)} messages, name one: {some_of(meant, _NAMED)}"
        )
    return next(iter(meant))
