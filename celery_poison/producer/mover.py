"""Moves committed rows of the user's database into the outbox: read, store and mark, delete, forget.

One process does so at a time, by a lease in Redis; what it stores is refused when it has lost that. A row
that it could not delete is still marked, so that whoever comes next does not store it again.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from uuid import uuid4

from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.producer.database import Rows, open_rows
from celery_poison.producer.outbox import Host, bounded_ledger

logger = get_logger("celery_poison")

#: Seconds after which another process may move rows, if this one does not say that it still does.
LEASE = 15.0
#: Seconds that a command to Redis may take; more than waiting for rows does, three times (`bounded_ledger`).
BOUND = 6.0
#: Rows that are moved in one step at most.
MOST = 100
#: Seconds between two looks at a table that seems empty, and between two tries to be the one who looks.
PAUSE, STANDBY = 1.0, 5.0


class Mover:
    """What one thread of a relay does for the user's database.

    Attributes:
        is_idle: set while nothing is being moved.
    """

    def __init__(self, plugin: Host, database: str) -> None:
        self._database = database
        self._ledger: Ledger = bounded_ledger(plugin.open_ledger, BOUND)
        self._rows: Rows | None = None
        self._name = uuid4().hex
        self._gone: list[str] = []
        self._is_mine = False
        self._is_away = False
        self.is_idle = threading.Event()
        self.is_idle.set()

    def once(self) -> float:
        """Move the first rows; return for how many seconds there is nothing to do.

        Raises:
            LedgerUnavailable: Redis is away; the rows stay where they are.
        """
        self._is_mine = False
        marked = self._ledger.outbox_lease_rows(self._name, int(LEASE * 1000), self._gone)
        self._gone = []
        if marked is None:
            return STANDBY
        self._is_mine = True
        return self._with_database(marked)

    def _with_database(self, marked: list[str]) -> float:
        try:
            rows = self._rows = self._rows or open_rows(self._database)
            try:
                if marked:  # whoever did this before left them behind
                    self._gone = [*{*marked} - rows.existing(marked)]
                is_more = self._move(rows)
            finally:
                rows.close()  # a process that is forked between two rounds inherits none
        except LedgerUnavailable:
            raise
        except Exception as error:
            self._complain(error)
            return STANDBY
        if self._is_away:
            self._is_away = False
            logger.warning("celery_poison: the database of the outbox is read again")
        return 0.0 if is_more else PAUSE

    def _move(self, rows: Rows) -> bool:
        """Move the first rows; whether there may be more."""
        found = rows.first(MOST)
        if not found:
            return False
        words = [(row.uid, row.lane, row.packed) for row in found]
        if not self._ledger.outbox_put_rows(self._name, int(LEASE * 1000), words):
            return False
        rows.delete(found)
        self._gone += [row.uid for row in found]
        return len(found) == MOST

    def _complain(self, error: Exception) -> None:
        if not self._is_away:
            logger.error(
                "celery_poison: the database of the outbox cannot be read, what waits there is sent later:"
                " %s: %s",
                type(error).__name__,
                error,
            )
        self._is_away = True

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait for rows, at most for ``seconds``."""
        if self._is_mine and not self._is_away:
            self._ledger.outbox_await_rows(seconds)
        else:
            stop.wait(seconds)

    def leave(self) -> None:
        """Let another process move rows from now on; what this one still does is void. From any thread."""
        with suppress(LedgerUnavailable):
            if self._is_mine:
                self._ledger.outbox_lease_rows(self._name, 0, self._gone)

    close = leave
