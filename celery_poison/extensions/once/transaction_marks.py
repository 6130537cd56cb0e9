"""A mark in the task's own transaction: done once, whatever dies (NEW-12).

An idempotency key counts from the moment when the task has returned. Between its commit and that moment its
process may die, and then it runs again. A mark that is committed together with the effect closes that gap::

    with transaction.atomic():                        # Django; Mark is a model with a primary key of text
        if mark_django(Mark, f"charge:{order_id}"):
            charge(order_id)

    with Session(engine) as session, session.begin():  # SQLAlchemy
        if mark_sqlalchemy(session, marks, f"charge:{order_id}"):
            charge(order_id)

Neither package is imported before its function is called.
"""

from __future__ import annotations

from typing import Any


def sqlalchemy_marks(metadata: Any, name: str = "marks") -> Any:
    """Return the table of marks, as part of your metadata: create it as you create your other tables.

    Args:
        metadata: a ``sqlalchemy.MetaData``, for example ``Base.metadata``.
    """
    from sqlalchemy import Column, DateTime, String, Table, func

    made_at = Column("made_at", DateTime, nullable=False, server_default=func.now())
    return Table(name, metadata, Column("key", String(200), primary_key=True), made_at)


def mark_sqlalchemy(session: Any, marks: Any, key: str) -> bool:
    """Leave a mark in the transaction of ``session``; False where it was left before.

    Where another transaction has left the same mark and not ended yet, the database lets this one wait.

    Args:
        session: a ``Session`` or a ``Connection``; the mark is committed or rolled back with its transaction.
        marks: from :func:`sqlalchemy_marks`.
        key: at most 200 characters.

    Raises:
        Exception: whatever the database raises but the refusal of a second mark.
    """
    from sqlalchemy import insert, select
    from sqlalchemy.exc import IntegrityError

    new = insert(marks).values(key=key)
    if _is_sqlite(session):  # Python's driver may commit at the end of a savepoint
        return bool(session.execute(new.prefix_with("OR IGNORE")).rowcount)
    if session.execute(select(marks.c.key).where(marks.c.key == key)).first() is not None:
        return False
    try:
        with session.begin_nested():
            session.execute(new)
    except IntegrityError:
        return False
    return True


def _is_sqlite(session: Any) -> bool:
    connection = session.get_bind() if hasattr(session, "get_bind") else session
    return bool(connection.dialect.name == "sqlite")


def mark_django(model: Any, key: str, using: str | None = None) -> bool:
    """Leave a mark in the present transaction; False where it was left before.

    Args:
        model: one of yours, whose primary key is text: ``key = models.CharField(max_length=200,
            primary_key=True)``; it needs no other field.
        using: name of the database; default that of the model.

    Raises:
        RuntimeError: there is no transaction that the mark would be part of.
    """
    from django.db import IntegrityError, router, transaction

    database = using or router.db_for_write(model)
    if not transaction.get_connection(database).in_atomic_block:
        raise RuntimeError("mark_django() belongs inside `with transaction.atomic():`, beside the effect")
    if model.objects.using(database).filter(pk=key).exists():
        return False
    try:
        with transaction.atomic(using=database):
            model(pk=key).save(using=database, force_insert=True)
    except IntegrityError:
        return False
    return True
