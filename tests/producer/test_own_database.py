"""The user's own database as the first hop: work and messages are committed together (TP1-1, TP1-9)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from celery._state import _task_stack
from celery.exceptions import Retry

from celery_poison.basics.parts import Panel
from celery_poison.desk.survey import overview
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.extensions.outbox import database
from celery_poison.extensions.outbox.database import DatabaseBacklog, open_rows
from celery_poison.flower.act_pages import held_back
from celery_poison.metrics.families import FAMILIES
from celery_poison.outbox import outbox_table, publishing_in
from tests.cli.conftest import Console
from tests.fleet.forked import DIED, Forked
from tests.producer.kit import Shop
from tests.producer.orders import Orders, close_connections, rows


@pytest.fixture
def shop(new_shop: Callable[..., Shop], orders: Orders) -> Shop:
    return new_shop(poison_outbox_database=orders.setting)


def _place(shop: Shop, orders: Orders, *numbers: int) -> None:
    """Place orders and publish their messages, in one transaction."""
    with orders.transaction(shop.app) as place:
        for number in numbers:
            place(number)
            shop.charge(number)


def _marked(shop: Shop) -> int:
    return int(shop.ledger.client.scard(shop.ledger.keys.of("outbox_moved")))


def test_TP1_9_an_order_and_its_message_are_committed_together_or_neither_is(
    shop: Shop, orders: Orders
) -> None:
    with orders.transaction(shop.app) as place:
        place(1)
        shop.charge(1)
        shop.task("charge").signature([2]).delay()
        assert shop.waiting() == [] == shop.queued(), "nothing leaves before the commit"
    with pytest.raises(LookupError), orders.transaction(shop.app) as place:
        place(3)
        shop.charge(3)
        raise LookupError
    assert orders.placed() == [1] and len(rows(orders)) == 2 and shop.waiting() == []
    shop.move()
    assert shop.waiting() == [1, 2] and rows(orders) == []
    shop.relay()
    assert shop.queued() == [1, 2]
    shop.move()
    assert not _marked(shop), "nothing is remembered of what the database does not have any more"


def test_TP1_6_messages_keep_the_order_of_their_commits(shop: Shop, orders: Orders) -> None:
    _place(shop, orders, *range(130))
    for number in range(130, 135):
        _place(shop, orders, number)
    shop.move()
    assert shop.waiting() == [*range(135)]


def test_what_is_published_outside_of_a_transaction_is_stored_in_the_ledger_as_ever(
    shop: Shop, orders: Orders
) -> None:
    shop.charge(1)
    assert shop.waiting() == [1] and rows(orders) == []


def test_TP1_1_of_many_commits_only_the_first_waits_for_a_ledger_that_does_not_answer(
    shop: Shop, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def away() -> None:
        asked.append(1)
        raise LedgerUnavailable("away")

    monkeypatch.setattr(shop.storing.lanes, "tell_rows", away)
    for number in range(3):
        _place(shop, orders, number)
    assert len(asked) <= 1 and len(rows(orders)) == 3, "a commit of a connection tells nobody"


def test_NEW_8_a_retry_does_not_go_with_the_transaction_that_it_rolls_back(
    shop: Shop, orders: Orders
) -> None:
    charge = shop.task("charge")
    charge.push_request(id="the-task", args=[7], kwargs={}, called_directly=False, retries=0)
    _task_stack.push(charge)
    try:
        with pytest.raises(Retry), orders.transaction(shop.app):
            charge.retry(countdown=0)
    finally:
        _task_stack.pop()
        charge.pop_request()
    assert shop.waiting() == [7]


# --- whoever moves them dies, or stops, between any two steps --------------------------------------------


def test_TP1_1_a_mover_killed_at_any_command_moves_each_row_once_in_its_order(
    new_shop: Callable[..., Shop], orders: Orders
) -> None:
    for number in count(1):
        shop = new_shop(poison_outbox_database=orders.setting)
        _place(shop, orders, 1, 2, 3)
        close_connections()
        victim = Forked(shop.move, number)
        victim.wait()
        _move_all(shop, orders)
        assert shop.waiting() == [1, 2, 3], f"killed before command {number}"
        assert not _marked(shop)
        if victim.status != DIED:
            break
    assert number > 2, "it was killed at every command"


@pytest.mark.parametrize("step", ["first", "delete", "close"])
def test_TP1_1_a_mover_killed_before_it_asks_the_database_moves_each_row_once(
    step: str, shop: Shop, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    _place(shop, orders, 1, 2, 3)
    close_connections()

    def dying() -> None:
        monkeypatch.setattr(type(open_rows(orders.setting)), step, lambda *_: os._exit(DIED))
        shop.move()

    victim = Forked(dying)
    victim.wait()
    assert victim.status == DIED
    assert _marked(shop) == (0 if step == "first" else 3)
    _move_all(shop, orders)
    assert shop.waiting() == [1, 2, 3] and not _marked(shop)


def _move_all(shop: Shop, orders: Orders) -> None:
    """Move the rows as soon as the lease of whoever did so before is over."""
    shop.ledger.client.delete(shop.ledger.keys.of("outbox_mover"))
    while rows(orders) or _marked(shop):
        shop.move()


def test_TP1_1_a_mover_that_stood_still_stores_nothing_that_another_has_moved(
    shop: Shop, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = shop.mover()
    put = frozen._lanes.put_rows

    def put_late(*args: Any) -> bool:
        _move_all(shop, orders)
        return put(*args)

    monkeypatch.setattr(frozen._lanes, "put_rows", put_late)
    _place(shop, orders, 1, 2)
    frozen.once()
    assert shop.waiting() == [1, 2]


def test_only_one_process_looks_into_the_database_at_a_time_until_it_leaves(
    shop: Shop, orders: Orders
) -> None:
    first, second = (shop.mover() for _ in range(2))
    assert (first.once(), second.once()) == (database.PAUSE, database.STANDBY)
    first.leave()
    assert (second.once(), first.once()) == (database.PAUSE, database.STANDBY)
    second.leave()


# --- what a person sees, and what goes wrong -------------------------------------------------------------


def test_the_rows_that_wait_are_told_by_status_outbox_status_and_doctor(shop: Shop, orders: Orders) -> None:
    _place(shop, orders, 1, 2)
    console = Console(shop.app)
    told = console.json("outbox", "status")["database"]
    assert told == console.json("status")["outbox_database"]
    assert (told["rows"], told["error"], abs(told["oldest"] - time.time()) < 600) == (2, "", True)
    assert "0 messages wait to be sent; 2 messages in the database" in console.out("status")
    doctor = console.run("doctor", "--json")
    assert '"2 messages in the database, since ' in doctor.output


def test_the_rows_that_wait_are_in_the_metrics_and_in_flower_when_they_should_have_been_moved(
    shop: Shop, orders: Orders
) -> None:
    _place(shop, orders, 1, 2)
    seen = overview(shop.app)
    late = replace(seen, at=seen.at + 60)
    read: dict[str, Any] = {each.name: each.read for each in FAMILIES}
    assert read["outbox_database_messages"](None, seen) == 2
    assert read["outbox_database_oldest_seconds"](None, late) > 59
    assert not held_back(seen) and [each.waiting for each in held_back(late)] == [2]
    away = replace(late, panels=[Panel("outbox_database", DatabaseBacklog(None, "no way there"))])
    assert not held_back(away) and read["outbox_database_messages"](None, away) is None


def test_a_database_that_does_not_answer_keeps_nobody_waiting_who_asks_how_much_waits(
    shop: Shop, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = Event(), []
    really = database.open_rows
    monkeypatch.setattr(database, "BOUND", 0.05)
    monkeypatch.setattr(
        database, "open_rows", lambda name: (asked.append(name), answers.wait(), really(name))[2]
    )
    for _ in range(3):
        waiting = database.waiting_rows(orders.setting)
        assert waiting and waiting.rows is None and "no answer" in waiting.error
    assert len(asked) == 1, "one that hangs is enough"
    answers.set()
    database._looks[orders.setting].join()


def test_a_database_that_is_away_is_said_once_and_tried_again(
    new_shop: Callable[..., Shop], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("sqlalchemy")
    shop = new_shop(poison_outbox_database="sqlite:////nowhere/at/all?secret=hunter2")
    away = shop.mover()
    assert [away.once(), away.once()] == [database.STANDBY, database.STANDBY]
    assert len(caplog.messages) == 1 and "hunter2" not in caplog.text
    assert Console(shop.app).json("outbox", "status")["database"]["rows"] is None


def test_publishing_in_refuses_what_nobody_would_send(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop()
    with pytest.raises(ConfigurationError, match="poison_outbox_database"), publishing_in(object(), shop.app):
        pass
    asynchronous = type("AsyncSession", (), {"run_sync": None})()
    with pytest.raises(TypeError, match="run_sync"), publishing_in(asynchronous, shop.app):
        pass


def test_the_table_is_the_same_in_django_and_sqlalchemy_and_has_its_migration() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from tests.django_once import configured

    configured()
    from django.core.management import call_command

    from celery_poison.contrib.django.models import OutboxRow

    call_command("makemigrations", "celery_poison", check=True, dry_run=True, verbosity=0)
    table = outbox_table(sqlalchemy.MetaData())
    meta = OutboxRow._meta
    assert (table.name, [*table.c.keys()]) == (meta.db_table, [each.column for each in meta.fields])


def test_a_command_of_celery_sets_django_up_before_it_counts_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("django")
    code = (
        "from django.conf import settings; from celery_poison.extensions.outbox.database import waiting_rows;"
        "settings.configure(INSTALLED_APPS=['celery_poison.contrib.django'], DATABASES={'default':"
        f" {{'ENGINE': 'django.db.backends.sqlite3', 'NAME': '{tmp_path}/orders.db'}}}});"
        # A busy machine takes longer to set it up than anybody is kept waiting: the next one hears of it.
        "\nwhile 'no answer' in (error := waiting_rows('django').error): pass"
        "\nassert 'no such table' in error, error"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_neither_django_nor_sqlalchemy_is_imported_unless_it_is_used() -> None:
    code = (
        "import sys, celery_poison.outbox, celery_poison.extensions.outbox.relay, celery_poison.cli.status;"
        "assert not {'django.db', 'sqlalchemy'} & {*sys.modules}"  # kombu looks for Django by itself
    )
    subprocess.run([sys.executable, "-c", code], check=True)
