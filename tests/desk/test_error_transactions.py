"""Error transactions are owed before the decision and sent after it: at least once, whoever dies (TP1-3)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_poison import Quarantine, install
from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.extensions.error_transactions.transactions import ErrorTransactions
from celery_poison.ledger import Ledger, owed
from celery_poison.model import Start
from celery_poison.rules.reports import ROOT, Report, ReportedMessage, ReportKind

START = Start.of("boot.1", "node/boot", "id1", "shop.charge", queue="q")
MESSAGE = ReportedMessage(id="id1", mid="m1", task="shop.charge", queue="q", args=[7], kwargs={})


class Desk:
    """An app whose error transactions go to the queue `alarms`, which nobody consumes."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.app = Celery("shop", set_as_current=False, broker=url)
        self.app.conf.task_routes = {"shop.alarm": "alarms"}
        names = {f"poison_{kind.value}": "shop.alarm" for kind in ReportKind}
        self.ledger: Ledger = install(self.app, **{**names, **settings}).open_ledger()
        self.errors = ErrorTransactions(self.app, self.ledger)
        self._redis = Redis.from_url(url)

    def sent(self) -> list[dict[str, Any]]:
        raws: Any = self._redis.lrange("alarms", 0, -1)
        messages = [json.loads(raw) for raw in reversed(raws)]
        return [
            {**json.loads(base64.b64decode(each["body"]))[0][0], "root": each["headers"]["root_id"]}
            for each in messages
        ]

    def owed(self) -> list[str]:
        return [id.decode() for id in self.ledger.client.hkeys(self.ledger.keys.of("owed"))]  # type: ignore[union-attr]


@pytest.fixture
def desk(new_redis_url: Callable[[], str]) -> Iterator[Desk]:
    desk = Desk(new_redis_url())
    yield desk
    desk.app.close()


def _report(kind: ReportKind = ReportKind.QUARANTINE, message: ReportedMessage = MESSAGE) -> Report:
    return Report.about(kind, message, "oom", "too large", token="boot.1")


def test_TP1_3_a_report_is_owed_while_its_decision_is_recorded_and_sent_then(desk: Desk) -> None:
    with desk.errors.owing(_report()):
        assert desk.owed() == [_report().id] and not desk.sent()
    (sent,) = desk.sent()
    assert (sent["kind"], sent["cause"], sent["reason"]) == ("on_quarantine", "oom", "too large")
    assert (sent["input"]["args"], sent["input"]["id"], sent["queue"]) == ([7], "id1", "q")
    assert sent["root"] == ROOT + _report().id and not desk.owed()


def test_TP1_3_whoever_dies_before_sending_leaves_it_to_the_active_monitor(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*args: Any) -> None:
        raise Killed

    monkeypatch.setattr(desk.errors, "_pay", die)
    with pytest.raises(Killed):
        desk.errors.tell(_report())
    monitor = ErrorTransactions(desk.app, desk.ledger)
    assert monitor.pay_late() == 0 and not desk.sent(), "its owner may be about to send it"
    monkeypatch.setattr(owed, "OVERDUE", 0.0)
    assert monitor.pay_late() == 1
    assert [sent["id"] for sent in desk.sent()] == [_report().id] and not desk.owed()


def test_TP1_3_what_the_broker_refuses_is_sent_by_the_active_monitor_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError("connection refused")

    with monkeypatch.context() as away:
        away.setattr("celery.canvas.Signature.apply_async", refuse)
        for _ in range(2):
            desk.errors.tell(_report())
    assert caplog.text.count("cannot be sent yet") == 1 and desk.owed()
    monkeypatch.setattr(owed, "OVERDUE", 0.0)
    assert desk.errors.pay_late() == 1 and len(desk.sent()) == 1


def test_TP1_3_what_was_not_decided_is_not_told_and_what_may_have_been_is(desk: Desk) -> None:
    with pytest.raises(StaleDelivery), desk.errors.owing(_report()):
        raise StaleDelivery
    assert not desk.owed()
    with pytest.raises(LedgerUnavailable), desk.errors.owing(_report()):
        raise LedgerUnavailable("no answer")
    assert desk.owed() and not desk.sent()


@pytest.mark.parametrize("root", [ROOT + "x", ""])
def test_TP1_3_an_error_transaction_and_what_comes_of_it_start_none(desk: Desk, root: str) -> None:
    desk.errors.tell(_report(message=ReportedMessage(task="shop.alarm", queue="alarms", root_id=root)))
    assert len(desk.sent()) == (0 if root else 1) and not desk.owed()


def test_TP1_3_who_only_observes_starts_none(new_redis_url: Callable[[], str]) -> None:
    desk = Desk(new_redis_url(), poison_observe_only=True)
    desk.errors.tell(_report())
    assert not desk.sent() and not desk.owed()
    desk.app.close()


def test_TP1_3_of_a_dead_workers_start_is_told_what_its_process_wrote_down_and_once(desk: Desk) -> None:
    key = desk.ledger.keys.attempt("boot.1")
    unsent = ReportedMessage(task="shop.mail", queue="mails")
    for each in (MESSAGE, unsent):
        desk.ledger.client.rpush(
            key, json.dumps(Report.about(ReportKind.ROLLBACK, each, "").as_dict()["input"])
        )
    for _ in range(2):
        desk.errors.rolled_back("m1", START, "worker_lost", "its worker died")
    (sent,) = desk.sent()
    assert (sent["kind"], sent["cause"], sent["task"]) == ("on_rollback", "worker_lost", "shop.mail")
    assert sent["input"]["args"] == [7] and [each["queue"] for each in sent["unsent"]] == ["mails"]
    assert not desk.ledger.client.exists(key)


def test_TP1_3_a_person_who_discards_starts_on_discard(desk: Desk) -> None:
    body = b"[[7], {}, {}]"
    fields: dict[str, str | bytes | int] = {
        "body": body,
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": json.dumps({"id": "id1", "task": "shop.charge"}),
        "properties": "{}",
        "queue": "q",
    }
    desk.ledger.quarantine.store("m1", START, cause="oom", reason="too large", fields=fields)
    (outcome,) = Quarantine(desk.app).discard(["m1"], actor="ann", note="not needed")
    assert outcome.done, outcome.error
    (sent,) = desk.sent()
    assert (sent["kind"], sent["cause"], sent["reason"]) == ("on_discard", "oom", "not needed")
    assert sent["input"]["args"] == [7] and sent["task"] == "shop.charge"
