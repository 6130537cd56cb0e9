"""Takes suspects out of their trials, or before them, into quarantine, so that a person can decide (SAP-7).

What is parked in the ledger is taken from there. What a worker has in hand is asked for, and handed over
within a heartbeat interval: its process is ended for that, and no strike is counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from celery import Celery

from celery_poison import causes
from celery_poison.errors import IllegalTransition, PoisonError, StaleDelivery
from celery_poison.keep.arguments import arguments, fingerprint_of_copy
from celery_poison.keep.stored_message import fields_of, unpack
from celery_poison.ledger import Ledger
from celery_poison.ledger.requested_suspects import is_there, unwant, want
from celery_poison.model import MessageRecord, Phase
from celery_poison.plugin import plugin_of
from celery_poison.policy import Policy
from celery_poison.states import State

#: What may be decided about a suspect.
VERBS = ("release", "fail", "discard")
#: Seconds beyond a heartbeat interval within which a worker has handed over what was asked for.
HANDOVER_TIMEOUT = 10.0
#: Seconds between two looks.
LOOK_EVERY = 0.1
#: Parked messages that are looked at for one.
LOOKED_AT = 20_000


class Suspects:
    """The suspects of one app."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._queries = ledger.read

    def ask_for(
        self, ids: Sequence[str], records: Iterable[MessageRecord | PoisonError], reason: str
    ) -> dict[str, MessageRecord]:
        """Ask for several at once, so that each need not be waited for by itself; return the suspects by id.

        Args:
            records: what was found by each of ``ids``.
        """
        pairs = zip(ids, records, strict=True)
        asked = {id: each for id, each in pairs if isinstance(each, MessageRecord) and _is_suspect(each)}
        want(self._ledger, [record.id for record in asked.values()], reason)
        return asked

    def take(self, record: MessageRecord, verb: str, reason: str) -> MessageRecord:
        """Return the record of a message in quarantine; what is no suspect comes back as it is.

        Args:
            reason: a sentence that names the person who wants it there.

        Raises:
            IllegalTransition: it has ended meanwhile, or no worker hands it over; or it is on trial now, and
                is to be released.
        """
        if verb not in VERBS or not _is_suspect(record):
            return record
        if verb == "release":
            if record.probation:
                return record
            if worker := self._tries(record):
                raise IllegalTransition(f"it is on trial now, on {worker}: fail or discard it to end that")
        return self._from_parking(record, reason) or self._from_worker(record, verb, reason)

    def _tries(self, record: MessageRecord) -> str:
        """Return which worker runs a message now; empty: none does."""
        starts = (start for _, start, _ in self._queries.running() if start.id == record.id)
        return next((start.worker for start in starts if start.phase == Phase.RUNNING), "")

    def _from_parking(self, record: MessageRecord, reason: str) -> MessageRecord | None:
        """Move what is parked; None: it is not, or not any more, or behind a start of its own."""
        # By its task id: a retry is another message, and the history is of all of them.
        waiting = islice(self._queries.parked_now(), LOOKED_AT)
        found = next((each for each in waiting if each[1].start.id == record.id), None)
        packed = self._queries.parcel(found[0]) if found else None
        if found is None or packed is None:
            return None
        mid, parked = found
        stored, task = unpack(packed), record.task
        settings = plugin_of(self._app).settings
        policy = Policy.of(self._app.tasks.get(task), settings)
        secret = self._queries.fingerprint_secret()
        fingerprint = fingerprint_of_copy(stored, task, secret, policy.fingerprint)
        fields = fields_of(stored, fingerprint, arguments(self._app, settings.redact, task, stored))
        if not policy.rerun and self._queries.history(record.id).cut_off == mid:
            fields["not_rerun"] = "1"
        with suppress(StaleDelivery):
            self._ledger.quarantine.store(
                mid,
                parked.start,
                cause=causes.REQUESTED,
                reason=reason,
                fields=fields,
            )
            return self._queries.record(mid)
        return None

    def _from_worker(self, record: MessageRecord, verb: str, reason: str) -> MessageRecord:
        """Ask the worker that has it in hand, and wait."""
        settings = plugin_of(self._app).settings
        if not any(each.alive for each in self._queries.workers(int(settings.activation_interval * 1000))):
            how = ": it was released" if record.probation else ""
            raise IllegalTransition(
                f"the message is in state {record.state}, not in quarantine{how}, and no worker is alive that"
                " could hand it over: start one"
            )
        want(self._ledger, [record.id], reason)
        patience = settings.heartbeat_interval + HANDOVER_TIMEOUT
        over = time.monotonic() + patience
        while time.monotonic() < over:
            is_known = self._queries.lineage(record.id) is not None
            if mid := is_there(self._ledger, record.id):
                unwant(self._ledger, record.id)
                if kept := self._queries.record(mid):
                    return kept
                want(self._ledger, [record.id], reason)  # that was an earlier time
            if not is_known:
                unwant(self._ledger, record.id)
                raise IllegalTransition("it has ended meanwhile, and is no suspect any more")
            time.sleep(LOOK_EVERY)
        raise IllegalTransition(
            f"no worker has handed it over within {patience:.0f} s; it may wait in a queue that none"
            f" consumes: it goes to quarantine when one receives it, within an hour; {verb} it then"
        )


def _is_suspect(record: MessageRecord) -> bool:
    return record.candidate and State(record.state) in (State.TBDL, State.DLNG)
