"""Old messages leave quarantine for a file (NEW-6)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice

from celery.utils.log import get_logger

from celery_poison.basics.forking import no_fork
from celery_poison.errors import OVERTAKEN
from celery_poison.keep.exported import line_of
from celery_poison.keep.private_files import open_private
from celery_poison.ledger import Ledger
from celery_poison.settings import Settings
from celery_poison.states import Event, State

logger = get_logger("celery_poison")

#: Messages that are deleted in one round, and those that one sync of the disk is for.
DELETED_AT_ONCE, SYNCED_AT_ONCE = 10_000, 50
#: The actor that gave a message up, in the journal.
RETENTION = "retention"


class Retention:
    """Deletes what was kept for longer than ``poison_quarantine_keep``, once it is safe in a file (NEW-6).

    A message is written to a file and synced before anything of it is deleted, by the steps with which a
    person discards and purges. A monitor that dies between leaves it in the ledger, or among what was given
    up: the next round, or after as long again a later one, writes it once more and goes on. Import takes
    each line once.
    """

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self._ledger = ledger
        self._queries = ledger.read
        self._keep, self._directory = settings.quarantine_keep, settings.quarantine_export
        self._name = settings.namespace
        self._note = f"kept for longer than {settings.quarantine_keep} seconds"

    def round(self) -> int:
        """Export and delete what is too old; return how many messages.

        Nothing of what could not be written is deleted; the log says why.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        if self._keep is None:
            return 0
        deleted = 0
        with no_fork():
            until = self._queries.now_ms() / 1000 - self._keep
            for state in (State.NDLV, State.FAIL):
                mids = [mid for mid, _ in islice(self._queries.index(state, until=until), DELETED_AT_ONCE)]
                for begin in range(0, len(mids), SYNCED_AT_ONCE):
                    try:
                        deleted += self._delete(state, mids[begin : begin + SYNCED_AT_ONCE])
                    except OSError as error:
                        logger.error(
                            "celery_poison: old messages stay in quarantine: poison_quarantine_export: %s",
                            error,
                        )
                        return deleted
        return deleted

    def _delete(self, state: State, mids: Sequence[str]) -> int:
        rows = {mid: self._queries.message(mid) for mid in mids}
        # What leaves quarantine by itself is not to be given up on its way.
        leaving = ("destination", "retry_at", "sent_at") if state is State.NDLV else ()
        old = {
            mid: row
            for mid, row in rows.items()
            if row.get("state") == state.encode() and not any(row.get(name) for name in leaving)
        }
        if old:
            self._write([line_of({"body": b"", **row}) for row in old.values()])
        deleted = 0
        for mid in old:
            with suppress(*OVERTAKEN):
                if state is State.NDLV:
                    why = RETENTION, self._note
                    with self._ledger.decisions.reserving(mid, "discard", *why) as number:
                        self._ledger.decisions.give_up(mid, Event.DISCARDED, *why, number)
                self._ledger.decisions.purge(mid, RETENTION, self._note)
                deleted += 1
        return deleted

    def _write(self, lines: Sequence[str]) -> None:
        """Append to the file of today, which only its owner can read, and wait for the disk."""
        day = datetime.now(UTC).date().isoformat()
        path = os.path.join(self._directory or "", f"{self._name}-{day}.jsonl")
        number = open_private(path, os.O_RDWR | os.O_APPEND)
        with open(number, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            # A monitor that was killed while it wrote has left half a line.
            torn = b"\n" if size and file.read(1) != b"\n" else b""
            file.write(torn + "".join(line + "\n" for line in lines).encode("ascii"))
            file.flush()  # all of it, or an error: a full disk takes a part of what a single write offers
            os.fsync(number)
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(directory)  # else the file's name may be lost with the machine
        finally:
            os.close(directory)
