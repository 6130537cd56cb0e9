"""Deletes what has been kept for longer than ``poison_quarantine_keep``, once it is safe in a file.

A message is written to a file and synced before anything of it is deleted, by the steps with which a person
discards and purges. A monitor that dies between leaves it in the ledger, or among what was given up: the next
round, or after as long again a later one, writes it once more and goes on. Import takes each line once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice

from celery.utils.log import get_logger

from celery_poison.errors import OVERTAKEN, LedgerUnavailable
from celery_poison.forking import no_fork
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.quarantine.transfer import line_of
from celery_poison.settings import Settings
from celery_poison.states import Event, State

logger = get_logger("celery_poison")

#: Seconds between two rounds, messages of a round, and those that one sync of the disk is for.
PAUSE, MOST, BATCH = 60.0, 10_000, 50
#: Who gave them up, in the journal.
ACTOR = "retention"


class Retention:
    """What is kept in one ledger, and for how long."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._keep, self._directory = settings.quarantine_keep, settings.quarantine_export
        self._name = settings.namespace
        self._note = f"kept for longer than {settings.quarantine_keep} seconds"
        self._next = 0.0
        self._thread: threading.Thread | None = None

    def soon(self) -> None:
        """Do a round in a thread of its own, once a minute: a slow disk stops nobody."""
        working = self._thread is not None and self._thread.is_alive()
        if self._keep is None or working or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PAUSE
        self._thread = threading.Thread(target=self._work, name="poison-retention", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            with no_fork():
                self.round()
        except LedgerUnavailable as error:
            logger.debug("celery_poison: nothing is deleted at the moment: %s", error)
        except OSError as error:
            logger.error("celery_poison: what is too old stays: poison_quarantine_export: %s", error)
        except Exception:
            logger.exception("celery_poison: what is too old stays; it is tried again")

    def round(self) -> int:
        """Export and delete what is too old; return how many messages.

        Raises:
            LedgerUnavailable: Redis is away.
            OSError: the file cannot be written; nothing of what was not written is deleted.
        """
        if self._keep is None:
            return 0
        deleted, until = 0, self._queries.now_ms() / 1000 - self._keep
        for state in (State.NDLV, State.FAIL):
            mids = [mid for mid, _ in islice(self._queries.index(state, until=until), MOST)]
            for begin in range(0, len(mids), BATCH):
                deleted += self._delete(state, mids[begin : begin + BATCH])
        return deleted

    def _delete(self, state: State, mids: Sequence[str]) -> int:
        rows = {mid: self._queries.message(mid) for mid in mids}
        # What leaves quarantine by itself is not to be given up on its way.
        old = {
            mid: row
            for mid, row in rows.items()
            if row.get("state") == state.encode() and (state is State.FAIL or not _leaves(row))
        }
        if old:
            self._write([line_of({"body": b"", **row}) for row in old.values()])
        deleted = 0
        for mid in old:
            with suppress(*OVERTAKEN):
                if state is State.NDLV:
                    number = self._ledger.decide(mid, "discard", ACTOR, self._note)
                    self._ledger.give_up(mid, Event.DISCARDED, ACTOR, self._note, number)
                self._ledger.purge(mid, ACTOR, self._note)
                deleted += 1
        return deleted

    def _write(self, lines: Sequence[str]) -> None:
        """Append to the file of today, which only its owner can read, and wait for the disk."""
        day = datetime.now(UTC).date().isoformat()
        path = os.path.join(self._directory or "", f"{self._name}-{day}.jsonl")
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with open(number, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            # Whoever was killed while it wrote has left half a line.
            torn = b"\n" if size and file.read(1) != b"\n" else b""
            file.write(torn + "".join(line + "\n" for line in lines).encode("ascii"))
            file.flush()  # all of it, or an error: a full disk takes a part of what a single write offers
            os.fsync(number)
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)  # else the file's name may be lost with the machine
        finally:
            os.close(directory)


def _leaves(row: dict[str, bytes]) -> bool:
    return any(row.get(name) for name in ("destination", "retry_at", "sent_at"))
