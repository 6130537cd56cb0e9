"""What waits in the ledger for an earlier start to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.reading.reader import PAGE, Reader, batches
from celery_poison.ledger.reading.starts import described
from celery_poison.model import MessageRecord, Parked, ParkingState
from celery_poison.states import State

_BEHIND = "parked until its earlier start ends"


class ParkedMessages(Reader):
    """Reads parked messages, and what is remembered of earlier ones."""

    def parked(self) -> Iterator[tuple[str, Parked, bytes]]:
        """Yield (mid, parking, raw parking) of everything that was parked and is not forgotten yet."""
        with clear_errors("reading the parked messages"):
            for mid, raw in self._client.hscan_iter(self._keys.parked, count=PAGE):
                yield mid.decode(), Parked.decode(raw), raw

    def parked_now(self) -> Iterator[tuple[str, Parked]]:
        """Yield (mid, parking) of everything that waits for an earlier start: it alone has a parcel."""
        with clear_errors("reading the parked messages"):
            mids: Any = self._client.hkeys(self._keys.parcels)
        for page in batches(iter(mids)):
            with clear_errors("reading the parked messages"):
                raws: Any = self._client.hmget(self._keys.parked, page)
            for mid, raw in zip(page, raws, strict=True):
                if raw and (parked := Parked.decode(raw)).state is ParkingState.WAITING:
                    yield mid.decode(), parked

    def waiting(self) -> Iterator[MessageRecord]:
        """Yield what is parked until an earlier start ends (TBDL)."""
        for mid, parked in self.parked_now():
            why = "parked on its way to its trial" if parked.start.alone else _BEHIND
            told = {"last_seen": str(parked.number), "reason": why}
            yield MessageRecord.from_hash({**described(mid, parked.start, {}), **told}, State.TBDL)

    def parcel(self, mid: str) -> bytes | None:
        """Return the packed original of a message that is parked."""
        with clear_errors("reading a parked message"):
            found: Any = self._client.hget(self._keys.parcels, mid)
        return found if found is None else bytes(found)
