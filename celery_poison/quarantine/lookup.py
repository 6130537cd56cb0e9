"""Finding one message by what people know of it: the mid, or the task id."""

from __future__ import annotations

from collections import defaultdict

from celery_poison.errors import MessageNotFound, PoisonError
from celery_poison.ledger.queries import Queries
from celery_poison.model import MessageRecord
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
        self._mids: dict[State, dict[str, list[str]]] = {}

    def find(self, id: str) -> MessageRecord:
        """Return the message with this mid, else the one with this task id.

        A message in quarantine goes before one that waits or runs, and that before one that was given up.

        Raises:
            MessageNotFound: the ledger knows no such message (healthy ones leave no record).
            AmbiguousId: several messages in quarantine carry this task id.
        """
        found = self._queries.record(id) or self._in_quarantine(id) or self._elsewhere(id)
        if found is None:
            raise MessageNotFound(f"no message {id!r}: neither in quarantine, nor given up, nor a candidate")
        return found

    def _in_quarantine(self, id: str) -> MessageRecord | None:
        mids = self._of_task(State.NDLV, id)
        if len(mids) > 1:
            told = ", ".join(mids)
            raise AmbiguousId(f"{len(mids)} messages in quarantine have the task id {id!r}, name one: {told}")
        return self._queries.record(mids[0]) if mids else None

    def _elsewhere(self, id: str) -> MessageRecord | None:
        """Return what waits or runs and has a history, else what was given up."""
        live = self._queries.lineage(id)
        if live is None:
            # A released message is a candidate until it has run; its record is kept by task id.
            live = next((record for record in self._queries.candidates() if record.mid == id), None)
        given_up = [] if live else self._of_task(State.FAIL, id)
        return live or (self._queries.record(given_up[0]) if given_up else None)

    def _of_task(self, state: State, id: str) -> list[str]:
        if state not in self._mids:
            index: dict[str, list[str]] = defaultdict(list)
            for mid, task_id in self._queries.kept_ids(state):
                index[task_id].append(mid)
            self._mids[state] = index
        return self._mids[state].get(id, [])
