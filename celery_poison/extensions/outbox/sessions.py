"""Publishing in a transaction of SQLAlchemy: work and messages are committed together, or neither (TP1-1).

::

    outbox_table(Base.metadata)  # once: a table, created with your others

    with Session(engine) as session, session.begin():
        session.add(order)
        session.flush()
        with publishing_in(session):
            charge.delay(order.id)

With Django nothing of this is needed: ``poison_outbox_database = "django"`` (docs/outbox.md). SQLAlchemy is
not imported before one of these is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, current_app

from celery_poison.broker.capture import Outgoing, captured
from celery_poison.errors import ConfigurationError
from celery_poison.extensions.outbox import outbox_of
from celery_poison.extensions.outbox.database import TABLE, is_own_successor, light_table, values_of
from celery_poison.extensions.outbox.settings import OutboxSettings
from celery_poison.plugin import plugin_of
from celery_poison.upstream import hooks


def outbox_table(metadata: Any) -> Any:
    """Return the table of the outbox, as part of your metadata: create it as you create your other tables.

    Args:
        metadata: a ``sqlalchemy.MetaData``, for example ``Base.metadata``.
    """
    from sqlalchemy import BigInteger, Column, Integer, LargeBinary, String, Table, Text

    number = BigInteger().with_variant(Integer(), "sqlite")
    return Table(
        TABLE,
        metadata,
        Column("id", number, primary_key=True, autoincrement=True),
        Column("uid", String(32), nullable=False),
        Column("lane", Text, nullable=False),
        Column("packed", LargeBinary, nullable=False),
        sqlite_autoincrement=True,  # else a new row may come before those that wait
    )


@contextmanager
def publishing_in(session: Any, app: Celery | None = None) -> Iterator[None]:
    """Store messages that are published in here as part of the transaction of ``session`` (TP1-1, TP1-9).

    They are sent when that is committed, in the order of the calls, and not at all if it is rolled back,
    whether their tasks have an outbox or not. Only a task's own retry or replacement leaves at once.

    Args:
        session: a ``Session``, a ``scoped_session`` or a ``Connection``; with an ``AsyncSession`` the one
            that ``await session.run_sync(...)`` gives to its function.
        app: default: Celery's current app.

    Raises:
        ConfigurationError: no relay would send it: ``poison_outbox_database`` is no URL of SQLAlchemy.
        TypeError: ``session`` is an asynchronous one.
    """
    if hasattr(session, "run_sync"):
        raise TypeError("publishing_in() wants the session that `await session.run_sync(function)` gives")
    plugin = plugin_of(app or current_app._get_current_object())
    outbox = outbox_of(plugin)
    if outbox is None:
        raise ConfigurationError("publishing_in() needs the extension outbox, which is not installed")
    if not hooks.fits(hooks.Area.OUTBOX):
        raise ConfigurationError(
            "publishing_in() needs the outbox, which does not fit this version of Celery"
        )
    if "://" not in (plugin.settings.of(OutboxSettings).outbox_database or ""):
        raise ConfigurationError(
            "no relay would send it: set poison_outbox_database to the URL of the database of this session"
        )
    rows = light_table()

    def take(outgoing: Outgoing) -> bool:
        if is_own_successor(outgoing):
            return False
        session.execute(rows.insert().values(**values_of(outgoing)))
        return True

    with captured(take):
        yield
    _tell_after_commit(session, outbox.tell_rows)


def _tell_after_commit(session: Any, tell: Any) -> None:
    """Wake the relay by the commit of a session; of a connection it learns within a second."""
    from sqlalchemy import event
    from sqlalchemy.orm import Session, scoped_session

    own = session() if isinstance(session, scoped_session) else session
    if isinstance(own, Session):
        event.listen(own, "after_commit", lambda _: tell(), once=True)
