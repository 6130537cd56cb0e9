"""Which suspects leave the ledger for their trial: as many as there are cells for, the likeliest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from celery_poison import causes
from celery_poison.ledger import Ledger
from celery_poison.ledger.groups import GroupKind
from celery_poison.model import Parked
from celery_poison.rules.doubts import turn


def whose_turn(
    ledger: Ledger, suspects: Mapping[str, Parked], activation_ms: int
) -> Iterator[tuple[str, Parked]]:
    """Yield the parked suspects, by mid, that may be published now.

    What another worker then takes, which is full, is parked again.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    queries, room = ledger.read, Counter[str]()
    for worker in queries.workers(activation_ms):
        if worker.alive and not worker.stopping:
            room.update(dict.fromkeys(worker.consumed, worker.room))
    here = {mid: parked for mid, parked in suspects.items() if room[parked.start.queue] > 0}
    if len(here) > 1:
        here = _sorted(ledger, here)
    for mid, parked in here.items():
        if room[parked.start.queue] > 0:
            room[parked.start.queue] -= 1
            yield mid, parked


def _sorted(ledger: Ledger, suspects: Mapping[str, Parked]) -> dict[str, Parked]:
    groups = ledger.read.alike(GroupKind.QUEUE).groups
    convicted = {group.task for group in groups if group.cause not in causes.NO_CONVICTIONS}
    records = ledger.read.suspected([parked.start.id for parked in suspects.values()])
    turns = {
        mid: turn(is_convicted=record.task in convicted, evidence=record.evidence, ran_ms=record.runtime_ms)
        for mid, record in zip(suspects, records, strict=True)
    }
    return {mid: suspects[mid] for mid in sorted(suspects, key=turns.__getitem__)}
