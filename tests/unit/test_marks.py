"""A mark is committed or rolled back with the effect beside it (NEW-12); with SQLite."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.marks import mark_django, mark_sqlalchemy, sqlalchemy_marks
from tests.django_once import configured


@pytest.fixture(params=["session", "connection", "savepoints"])
def begin(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that begins a transaction, and the table."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/marks.db")
    if request.param == "savepoints":  # as with every other database, once the driver lets transactions alone
        monkeypatch.setattr(
            "celery_poison.extensions.once.transaction_marks._is_sqlite", lambda session: False
        )
        sqlalchemy.event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
        sqlalchemy.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    metadata = sqlalchemy.MetaData()
    table = sqlalchemy_marks(metadata)
    metadata.create_all(engine)
    yield (Session(engine).begin if request.param == "session" else engine.begin), table
    engine.dispose()


def _within(transaction: Any) -> Any:
    """Return what a transaction of either kind works on."""
    return getattr(transaction, "session", transaction)


def test_NEW_12_with_sqlalchemy_a_mark_is_left_once(begin: Any) -> None:
    start, marks = begin
    with start() as transaction:
        assert mark_sqlalchemy(_within(transaction), marks, "charge:7")
        assert not mark_sqlalchemy(_within(transaction), marks, "charge:7"), "in the same transaction"
    with start() as transaction:
        assert not mark_sqlalchemy(_within(transaction), marks, "charge:7"), "in the next"
        assert mark_sqlalchemy(_within(transaction), marks, "charge:8")


def test_NEW_12_with_sqlalchemy_a_mark_goes_with_a_transaction_that_is_rolled_back(begin: Any) -> None:
    start, marks = begin
    with pytest.raises(LookupError), start() as transaction:
        mark_sqlalchemy(_within(transaction), marks, "charge:7")
        raise LookupError
    with start() as transaction:
        assert mark_sqlalchemy(_within(transaction), marks, "charge:7")


def test_NEW_12_with_sqlalchemy_the_work_beside_a_refused_mark_stays(begin: Any, tmp_path: Path) -> None:
    start, marks = begin
    with start() as transaction:
        mark_sqlalchemy(_within(transaction), marks, "charge:7")
    with start() as transaction:
        within = _within(transaction)
        mark_sqlalchemy(within, marks, "beside")
        assert not mark_sqlalchemy(_Blind(within), marks, "charge:7")
    with start() as transaction:
        assert not mark_sqlalchemy(_within(transaction), marks, "beside")


class _Blind:
    """Looks before the other transaction has committed, and inserts after it."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def execute(self, statement: Any) -> Any:
        found = self._session.execute(statement)
        return SimpleNamespace(first=lambda: None) if statement.is_select else found


@pytest.fixture(scope="module")
def mark() -> Any:
    """A Django model, in a database in memory."""
    configured()
    from django.db import connection, models

    class Mark(models.Model):
        key = models.CharField(max_length=200, primary_key=True)

        class Meta:
            app_label = "shop"

    with connection.schema_editor() as editor:
        editor.create_model(Mark)
    yield Mark
    connection.close()


def test_NEW_12_with_django_a_mark_is_left_once_and_goes_with_its_transaction(mark: Any) -> None:
    from django.db import transaction

    with pytest.raises(LookupError), transaction.atomic():
        assert mark_django(mark, "charge:7")
        raise LookupError
    with transaction.atomic():
        assert mark_django(mark, "charge:7"), "the first one was rolled back"
        assert not mark_django(mark, "charge:7"), "in the same transaction"
        assert mark_django(mark, "charge:8"), "which goes on"
    with transaction.atomic():
        assert not mark_django(mark, "charge:7"), "in the next"
    with pytest.raises(RuntimeError, match="atomic"):
        mark_django(mark, "charge:9")
