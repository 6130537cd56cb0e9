"""What error transactions are told: table 2-4 of the source, as plain data, as the docs say it (TP1-3)."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

import pytest
from celery import Celery, chain

from celery_poison import guarded, install
from celery_poison.errors import ConfigurationError
from celery_poison.extensions.error_transactions.transactions import signature_for
from celery_poison.rules.reports import MAX_BODY, Report, ReportedMessage, ReportKind
from tests.docs.pages import rows, section, text, words

JSON = "application/json"


def _message(
    body: bytes = b'[[7], {"page": 1}, {}]', content_type: str = JSON, **headers: Any
) -> ReportedMessage:
    known = {"id": "i", "task": "shop.charge", "retries": 2, "root_id": "r", **headers}
    return ReportedMessage.of(known, body, content_type, mid="m", queue="q")


def test_TP1_3_the_documented_schema_is_the_one_in_the_code() -> None:
    table = [words(row[0])[0] for row in rows(section(text("error-transactions.md"), "The report"))]
    assert table == [each.name for each in fields(Report)] + [each.name for each in fields(ReportedMessage)]


def test_TP1_3_a_report_is_plain_json_with_every_field_of_table_2_4() -> None:
    report = Report(
        kind="on_send_failed",
        id="x",
        queue="group",
        task="service",
        cause="transport",
        queue_blocked=True,
        outbox_seq=12,
        uncertain=True,
        unsent=[_message()],
    ).as_dict()
    assert json.loads(json.dumps(report)) == report
    assert {"queue", "task", "cause", "queue_blocked", "outbox_seq", "input", "unsent", "uncertain"} <= set(
        report
    )
    (sent,) = report["unsent"]
    assert (sent["args"], sent["kwargs"], sent["body"]) == ([7], {"page": 1}, None)
    assert (sent["id"], sent["task"], sent["retries"], sent["root_id"]) == ("i", "shop.charge", 2, "r")


def test_TP1_3_a_rollback_names_the_destination_of_its_first_unsent_message() -> None:
    other = ReportedMessage(task="shop.mail", queue="mails")
    bare = Report.about(ReportKind.ROLLBACK, _message(), "failure", token="t")
    assert (bare.queue, bare.task) == ("", "") and bare.input is not None and bare.input.queue == "q"
    sending = Report.about(ReportKind.ROLLBACK, _message(), "failure", unsent=[other, _message()])
    assert (sending.queue, sending.task) == ("mails", "shop.mail") and sending.unsent[0] is other
    assert Report.about(ReportKind.QUARANTINE, _message(), "oom").queue == "q"
    assert bare.id == Report.about(ReportKind.ROLLBACK, _message(), "other", token="t").id != sending.id


@pytest.mark.parametrize(
    ("body", "content_type", "headers"),
    [
        (b"\x80pickle", "application/x-python-serialize", {}),
        (b"x\x9c", JSON, {"compression": "application/x-gzip"}),
        (b"{broken", JSON, {}),
        (b"[1, 2, 3]", JSON, {}),
        (b"[" * 100_000, JSON, {}),
    ],
)
def test_TP1_3_a_body_that_is_not_plain_json_is_told_in_base64(
    body: bytes, content_type: str, headers: dict[str, Any]
) -> None:
    told = _message(body, content_type, **headers)
    assert told.args is None and told.body is not None and base64.b64decode(told.body) == body
    assert told.payload_bytes == len(body)


def test_TP1_3_a_body_that_is_too_large_is_told_by_its_size_only() -> None:
    told = _message(b'[["' + b"x" * MAX_BODY + b'"], {}, {}]')
    assert told.args is told.body is None and told.payload_bytes > MAX_BODY


def test_TP1_3_garbage_in_headers_is_no_failure_of_ours() -> None:
    told = _message(id=None, retries="many", root_id=["x"])
    assert (told.id, told.retries) == ("", 0)


def _app(**settings: Any) -> Celery:
    app = Celery("shop", set_as_current=False, broker="redis://")
    install(app, **settings)

    @app.task(name="shop.alarm", shared=False)
    def alarm(report: Any, *more: Any) -> None: ...

    @guarded(on_quarantine=app.signature("shop.alarm", args=("own",)))
    @app.task(name="shop.charge", shared=False)
    def charge() -> None: ...

    return app


def test_TP1_3_the_tasks_own_goes_before_the_queues_and_that_before_the_apps() -> None:
    by_queue = {"invoices": "shop.alarm", "*": Celery().signature("shop.note", args=("any",))}
    app = _app(poison_on_quarantine=by_queue, poison_on_rollback="shop.alarm")
    find = lambda kind, task, queue: signature_for(app, kind, task, queue)  # noqa: E731
    own, invoice, other = (
        find(ReportKind.QUARANTINE, *where)
        for where in (("shop.charge", "invoices"), ("shop.other", "invoices"), ("?", "q"))
    )
    assert own is not None and own.args == ("own",)
    assert invoice is not None and (invoice.task, invoice.args) == ("shop.alarm", ())
    assert other is not None and (other.task, list(other.args)) == ("shop.note", ["any"])
    rollback = find(ReportKind.ROLLBACK, "shop.charge", "q")
    assert rollback is not None and rollback.task == "shop.alarm"
    assert find(ReportKind.DISCARD, "shop.charge", "q") is None


def test_TP1_3_any_signature_is_taken_and_nothing_else() -> None:
    app = _app()
    several = chain(app.signature("shop.alarm"), app.signature("shop.note"), app=app)
    assert guarded(on_rollback=several) and guarded(on_rollback={"q": several, "*": "shop.alarm"})
    for wrong in (7, ["shop.alarm"], {"q": 7}):
        with pytest.raises(ConfigurationError, match="use a signature, the name of a task"):
            guarded(on_rollback=wrong)
