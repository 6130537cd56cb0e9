"""Where the orders of `outbox_kills.py` are placed, with their messages, by SQLAlchemy or Django."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from celery import Celery

from celery_poison.outbox import outbox_table, publishing_in

#: Begins a transaction; it gives what places an order.
Begin = Callable[[], AbstractContextManager[Callable[[int], object]]]


def begin_with(database: str, url: str, app: Celery) -> Begin:
    """Return what begins transactions in which messages are stored.

    Args:
        database: ``poison_outbox_database``.
        url: the same database, as SQLAlchemy names it.
    """
    return _with_django(url) if database == "django" else _with_sqlalchemy(url, app)


def _with_sqlalchemy(url: str, app: Celery) -> Begin:
    import sqlalchemy
    from sqlalchemy.orm import Session

    order = sqlalchemy.table("placed", sqlalchemy.column("number"))
    engine = sqlalchemy.create_engine(url)

    @contextmanager
    def begin() -> Iterator[Callable[[int], object]]:
        with Session(engine) as session, session.begin(), publishing_in(session, app):
            yield lambda number: session.execute(order.insert().values(number=number))

    return begin


def _with_django(url: str) -> Begin:
    use_django(url)
    from django.db import connection, transaction

    @contextmanager
    def begin() -> Iterator[Callable[[int], object]]:
        try:
            with transaction.atomic():
                yield lambda number: connection.cursor().execute("INSERT INTO placed VALUES (%s)", [number])
        except LookupError:
            raise
        except Exception:
            connection.close()  # as Django does after a request that it could not be used in
            raise

    return begin


def use_django(url: str) -> None:
    """Configure Django for this process, which no other is forked from."""
    import django
    from django.conf import settings

    at = urlsplit(url)
    if at.scheme == "sqlite":
        name, engine = at.path[1:], "sqlite3"
        begin = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"
        options: dict[str, object] = {"OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": begin}}
    else:
        name, engine = at.path[1:], "postgresql"
        options = {"HOST": at.hostname, "PORT": at.port, "USER": at.username}
    database = {"ENGINE": f"django.db.backends.{engine}", "NAME": name, **options}
    settings.configure(
        DATABASES={"default": database}, INSTALLED_APPS=["celery_poison.contrib.django"], USE_TZ=True
    )
    django.setup()


def migrate(url: str) -> None:
    use_django(url)
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def create(url: str, *, with_outbox: bool) -> None:
    """Create the tables; that of the outbox is Django's own affair where it is Django's."""
    import django.db.models  # noqa: F401 - here, so that no fork of this process need load them
    import sqlalchemy
    import sqlalchemy.orm

    engine, metadata = sqlalchemy.create_engine(url), sqlalchemy.MetaData()
    if with_outbox:
        outbox_table(metadata)
    sqlalchemy.Table("placed", metadata, sqlalchemy.Column("number", sqlalchemy.BigInteger))
    metadata.create_all(engine)
    engine.dispose()


def placed(url: str) -> set[int]:
    """Return the orders that are committed."""
    import sqlalchemy

    engine: Any = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        return {*connection.execute(sqlalchemy.text("SELECT number FROM placed")).scalars()}
