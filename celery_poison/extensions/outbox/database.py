"""The user's own database as the first hop: one table, written in the caller's transaction (TP1-1).

What is committed there is moved into the outbox. Neither Django nor SQLAlchemy is imported before it is used.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

from celery import current_task
from celery.utils.log import get_logger

from celery_poison.basics.text import count_of, when
from celery_poison.broker.capture import Outgoing
from celery_poison.errors import LedgerUnavailable
from celery_poison.extensions.outbox.lanes import Lanes
from celery_poison.extensions.outbox.packing import lane_of, pack, unpack
from celery_poison.ledger import Ledger

logger = get_logger("celery_poison")

#: Name of the table, whoever creates it.
TABLE = "celery_poison_outbox"
#: Seconds after which another process may move rows, if this one does not say that it still does.
LEASE = 15.0
#: Rows that are moved in one step at most.
MOST = 100
#: Seconds between two looks at a table that seems empty, and between two tries to be the one who looks.
PAUSE, STANDBY = 1.0, 5.0


class CommittedRow(NamedTuple):
    """One committed message.

    Attributes:
        id: in the order in which the database handed them out.
        uid: of this row, and of no other ever.
    """

    id: int
    uid: str
    lane: str
    packed: bytes


def open_rows(database: str) -> DjangoRows | SqlRows:
    """Return the table in the database that ``poison_outbox_database`` names; nothing is connected yet.

    Raises:
        ImportError: Django, SQLAlchemy or the driver is not installed.
        Exception: Django is not configured.
    """
    if "://" in database:
        return SqlRows(database)
    import django
    from django.apps import apps

    if not apps.ready:  # Celery sets Django up in workers, and not for its other commands
        django.setup()
    return DjangoRows(database)


def is_own_successor(outgoing: Outgoing) -> bool:
    """Whether a task publishes what comes in its own place: a retry, or what it is replaced by.

    It ends by an exception then, which rolls its transaction back: that message must not go with it.
    """
    task = current_task
    return bool(task) and bool(outgoing.id) and task.request.id == outgoing.id


class DatabaseBacklog(NamedTuple):
    """The messages that wait in the user's database.

    Attributes:
        rows: None: it cannot be read, and ``error`` says why.
        oldest: when the first of them was stored, in seconds since 1970; None where none waits.
    """

    rows: int | None
    error: str = ""
    oldest: float | None = None

    def __str__(self) -> str:
        if self.rows is None:
            return f"the database of the outbox cannot be read: {self.error}"
        since = f", since {when(self.oldest)}" if self.oldest else ""
        return f"{count_of(self.rows, 'message')} in the database{since}"


#: Seconds that whoever asks how many rows wait is kept waiting by a database that does not answer.
BOUND = 2.0


class _Look(threading.Thread):
    """Looks once: no driver can be relied on to end within a bound."""

    def __init__(self, database: str) -> None:
        super().__init__(name="poison-outbox-rows", daemon=True)
        self._database = database
        self.found = DatabaseBacklog(None, f"no answer within {BOUND:g} seconds")

    def run(self) -> None:
        try:
            rows = open_rows(self._database)
            try:
                first = rows.first(1)
                oldest = None
                with suppress(ValueError, TypeError):  # nobody can read it
                    oldest = unpack(first[0].packed).at if first else None
                self.found = DatabaseBacklog(rows.count(), oldest=oldest)
            finally:
                rows.close()
        except Exception as error:  # whatever its driver raises
            said = str(error).splitlines()[0] if str(error) else ""
            self.found = DatabaseBacklog(None, f"{type(error).__name__}: {said}")


#: Database -> the newest look at it.
_looks: dict[str, _Look] = {}


def waiting_rows(database: str | None) -> DatabaseBacklog | None:
    """Count what waits in the user's database; None where there is none (``poison_outbox_database``)."""
    if not database:
        return None
    look = _looks.get(database)
    if look is None or not look.is_alive():  # else one that hangs is enough
        look = _looks[database] = _Look(database)
        look.start()
    look.join(BOUND)
    return look.found


class DjangoRows:
    """The table of ``celery_poison.contrib.django``, for one thread; all raise what the database does.

    Args:
        database: ``django`` or ``django:ALIAS``.
    """

    def __init__(self, database: str) -> None:
        self._alias = database.partition(":")[2] or "default"

    def is_in_transaction(self) -> bool:
        """Whether this thread is inside ``transaction.atomic()`` of this database."""
        return bool(self._connection.in_atomic_block)

    def add(self, outgoing: Outgoing) -> None:
        """Store a message in the present transaction."""
        self._objects.create(**values_of(outgoing))

    def after_commit(self, call: Any) -> None:
        """Let ``call`` be called once when the present transaction is committed."""
        from django.db import transaction

        if all(each[1] != call for each in self._connection.run_on_commit):
            transaction.on_commit(call, using=self._alias, robust=True)

    def first(self, most: int) -> Sequence[CommittedRow]:
        """Return the first committed rows."""
        found = self._objects.order_by("id").values_list("id", "uid", "lane", "packed")[:most]
        return [CommittedRow(id, uid, lane, bytes(packed)) for id, uid, lane, packed in found]

    def existing(self, uids: Collection[str]) -> set[str]:
        return {*self._objects.filter(uid__in=uids).values_list("uid", flat=True)}

    def delete(self, rows: Sequence[CommittedRow]) -> None:
        """Delete rows, and commit that."""
        self._objects.filter(id__in=[row.id for row in rows]).delete()

    def count(self) -> int:
        return int(self._objects.count())

    def close(self) -> None:
        """Give the connection up; the next call opens another."""
        self._connection.close()

    @property
    def _connection(self) -> Any:
        from django.db import connections

        return connections[self._alias]

    @property
    def _objects(self) -> Any:
        from celery_poison.contrib.django.models import OutboxRow

        return OutboxRow.objects.using(self._alias)


class SqlRows:
    """The table of ``celery_poison.outbox.outbox_table``, with the same methods.

    Args:
        database: its URL.
    """

    def __init__(self, database: str) -> None:
        from sqlalchemy import create_engine
        from sqlalchemy.pool import NullPool

        # A message has no place in the log: no parameters in the texts of errors.
        self._engine = create_engine(
            database, poolclass=NullPool, isolation_level="AUTOCOMMIT", hide_parameters=True
        )
        self._open: Any = None
        self._table = light_table()

    def first(self, most: int) -> Sequence[CommittedRow]:
        c = self._table.c
        wanted = self._table.select().order_by(c.id).limit(most)
        return [CommittedRow(*row) for row in self._connection.execute(wanted)]

    def existing(self, uids: Collection[str]) -> set[str]:
        from sqlalchemy import select

        uid = self._table.c.uid
        return {*self._connection.execute(select(uid).where(uid.in_(uids))).scalars()}

    def delete(self, rows: Sequence[CommittedRow]) -> None:
        from sqlalchemy import delete

        ids = [row.id for row in rows]
        self._connection.execute(delete(self._table).where(self._table.c.id.in_(ids)))

    def count(self) -> int:
        from sqlalchemy import func, select

        return int(self._connection.execute(select(func.count()).select_from(self._table)).scalar_one())

    def close(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            with suppress(Exception):  # it may be broken
                connection.close()

    @property
    def _connection(self) -> Any:
        if self._open is None:
            self._open = self._engine.connect()
        return self._open


def light_table() -> Any:
    """Return the table as statements of SQLAlchemy need it; it is part of no metadata."""
    from sqlalchemy import BigInteger, LargeBinary, String, Text, column, table

    kinds = {"id": BigInteger, "uid": String, "lane": Text, "packed": LargeBinary}
    return table(TABLE, *(column(name, kind) for name, kind in kinds.items()))


def values_of(outgoing: Outgoing) -> dict[str, Any]:
    """Return the columns of a new row."""
    return {"uid": uuid4().hex, "lane": str(lane_of(outgoing)), "packed": pack(outgoing)}


class Mover:
    """Moves committed rows of the user's database into the outbox: read, store and mark, delete, forget.

    One process does so at a time, by a lease in Redis; what it stores is refused when it has lost that. A row
    that it could not delete is still marked, so that whoever comes next does not store it again.

    Args:
        ledger: one on which nobody waits for long: a command takes a few seconds, and waiting for rows less.
    """

    def __init__(self, ledger: Ledger, database: str) -> None:
        self._database = database
        self._ledger = ledger
        self._lanes = Lanes(ledger)
        self._rows: DjangoRows | SqlRows | None = None
        self._name = uuid4().hex
        self._gone: list[str] = []
        self._is_mine = False
        self._is_away = False

    def once(self) -> float:
        """Move the first rows; return for how many seconds there is nothing to do.

        Raises:
            LedgerUnavailable: Redis is away; the rows stay where they are.
        """
        self._is_mine = False
        marked = self._lanes.lease_rows(self._name, int(LEASE * 1000), self._gone)
        self._gone = []
        if marked is None:
            return STANDBY
        self._is_mine = True
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
        except Exception as error:  # whatever its driver raises
            if not self._is_away:
                story = "the database of the outbox cannot be read, its messages are sent later"
                logger.error("celery_poison: %s: %s: %s", story, type(error).__name__, error)
            self._is_away = True
            return STANDBY
        if self._is_away:
            self._is_away = False
            logger.warning("celery_poison: the database of the outbox is read again")
        return 0.0 if is_more else PAUSE

    def _move(self, rows: DjangoRows | SqlRows) -> bool:
        """Move the first rows; whether there may be more."""
        found = rows.first(MOST)
        if not found:
            return False
        words = [(row.uid, row.lane, row.packed) for row in found]
        if not self._lanes.put_rows(self._name, int(LEASE * 1000), words):
            return False
        rows.delete(found)
        self._gone += [row.uid for row in found]
        return len(found) == MOST

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait for rows, at most for ``seconds``."""
        if self._is_mine and not self._is_away:
            self._lanes.await_rows(seconds)
        else:
            stop.wait(seconds)

    def leave(self) -> None:
        """Let another process move rows from now on; what this one still does is void. From any thread."""
        with suppress(LedgerUnavailable):
            if self._is_mine:
                self._lanes.lease_rows(self._name, 0, self._gone)

    def close(self) -> None:
        """The same for good, in its own thread."""
        self.leave()
        self._is_mine = False
        self._ledger.disconnect()
