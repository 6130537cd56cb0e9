"""The user's own database: orders are placed in a transaction, and what is published beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from celery import Celery

from celery_poison.extensions.outbox.database import CommittedRow, open_rows
from celery_poison.outbox import outbox_table, publishing_in
from tests.django_once import configured

#: Django's name of the database.
ALIAS = "orders"


class Orders(Protocol):
    """A database, and a table of orders in it.

    Attributes:
        setting: `poison_outbox_database`.
    """

    setting: str

    def transaction(self, app: Celery) -> Any:
        """A context that commits at its end, unless it raises; gives what places an order."""

    def placed(self) -> list[int]:
        """The orders that are committed."""


class DjangoOrders:
    setting = f"django:{ALIAS}"

    def __init__(self) -> None:
        self._execute("CREATE TABLE placed (number INTEGER)")

    def _execute(self, statement: str, *values: int) -> Any:
        from django.db import connections

        cursor = connections[ALIAS].cursor()
        cursor.execute(statement, values)
        return cursor

    @contextmanager
    def transaction(self, app: Celery) -> Iterator[Any]:
        from django.db import transaction

        with transaction.atomic(using=ALIAS):
            yield lambda number: self._execute("INSERT INTO placed VALUES (%s)", number)

    def drop(self) -> None:
        from django.core.management import call_command

        self._execute("DROP TABLE placed")
        call_command("migrate", "celery_poison", "zero", database=ALIAS, verbosity=0)

    def placed(self) -> list[int]:
        return [row[0] for row in self._execute("SELECT number FROM placed ORDER BY number").fetchall()]


class SqlOrders:
    def __init__(self, url: str, *, with_session: bool) -> None:
        import sqlalchemy
        from sqlalchemy.orm import Session

        self.setting = url
        self._sql: Any = sqlalchemy
        self.engine: Any = sqlalchemy.create_engine(url)
        self._begin: Any = Session(self.engine).begin if with_session else self.engine.begin
        metadata = sqlalchemy.MetaData()
        outbox_table(metadata)
        self._orders = sqlalchemy.Table("placed", metadata, sqlalchemy.Column("number", sqlalchemy.Integer))
        metadata.create_all(self.engine)
        self._metadata = metadata

    @contextmanager
    def transaction(self, app: Celery) -> Iterator[Any]:
        with self._begin() as begun:
            session = getattr(begun, "session", begun)
            with publishing_in(session, app):
                yield lambda number: session.execute(self._orders.insert().values(number=number))

    def placed(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(self._orders.select()).scalars())

    def close(self) -> None:
        self._metadata.drop_all(self.engine)
        self.engine.dispose()


def close_connections() -> None:
    """Close what a fork of this process would share with it."""
    configured()
    from django.db import connections

    for each in connections.all(initialized_only=True):
        each.close()


def rows(orders: Orders) -> list[CommittedRow]:
    """The committed rows of the outbox."""
    table = open_rows(orders.setting)
    try:
        return [*table.first(1000)]
    finally:
        table.close()
