"""Finding one message by what people know of it: the mid, or the task id."""

from __future__ import annotations

from collections import defaultdict

from celery_poison.errors import MessageNotFound, PoisonError
from celery_poison.ledger.queries import Queries
from celery_poison.records import MessageRecord
from celery_poison.states import State


class AmbiguousId(PoisonError):
    """Several messages in quarantine carry this task id; their mids tell them apart."""


class Lookup:
    """Finds messages for one act.

    By mid this is one look into Redis. The first task id costs a walk through everything that is kept,
    since no second index is held that could disagree; further ones cost nothing more.
    """

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._kept: dict[State, dict[str, list[MessageRecord]]] = {}

    def find(self, id: str) -> MessageRecord:
        """Return the message with this mid, else the one with this task id.

        A message in quarantine goes before one that waits or runs, and that before one that was given up.

        Raises:
            MessageNotFound: the ledger knows no such message (healthy ones leave no record).
            AmbiguousId: several messages in quarantine carry this task id.
        """
        by_mid = self._queries.record(id)
        if by_mid is not None:
            return by_mid
        waiting = self._of_task(State.NDLV, id)
        if len(waiting) > 1:
            mids = ", ".join(record.mid for record in waiting)
            raise AmbiguousId(
                f"{len(waiting)} messages in quarantine have the task id {id!r}, name one: {mids}"
            )
        found = waiting[0] if waiting else self._elsewhere(id)
        if found is None:
            raise MessageNotFound(f"no message {id!r}: neither in quarantine, nor given up, nor a candidate")
        return found

    def _elsewhere(self, id: str) -> MessageRecord | None:
        """Return what waits or runs and has a history, else what was given up."""
        live = self._queries.lineage(id)
        if live is None:
            # A released message is a candidate until it has run; its record is kept by task id.
            live = next((record for record in self._queries.candidates() if record.mid == id), None)
        given_up = [] if live else self._of_task(State.FAIL, id)
        return live or (given_up[0] if given_up else None)

    def _of_task(self, state: State, id: str) -> list[MessageRecord]:
        if state not in self._kept:
            index: dict[str, list[MessageRecord]] = defaultdict(list)
            for record in self._queries.kept(state):
                index[record.id].append(record)
            self._kept[state] = index
        return self._kept[state].get(id, [])
