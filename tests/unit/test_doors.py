"""What a publisher, or another user of Redis, has written is bounded, and proves nothing about others."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_poison.basics.numbers import milliseconds, whole
from celery_poison.causes import Evidence
from celery_poison.desk.evidence import sentence_of
from celery_poison.desk.lines import BadExport, _check_evidence
from celery_poison.desk.search import Group
from celery_poison.extensions.deploy_guard.first_runs import FirstRunOutcome, FirstRuns, Over, ended
from celery_poison.extensions.holds.pausing import _fits
from celery_poison.extensions.notify.notifier import Wording
from celery_poison.extensions.once.per_key import digest_of
from celery_poison.keep.arguments import HIDDEN, headers_shown
from celery_poison.model import MessageRecord, Parked, Start
from celery_poison.states import State
from celery_poison.worker.request import GuardedRequest

LONG = "9" * 5000


@pytest.mark.parametrize("text", [LONG, "-" + LONG, "1e9", "", "x", "\u0663", " 1", "1_0"])
def test_NEW_5_a_number_that_nobody_here_has_written_is_none(text: str) -> None:
    assert whole(text) == 0 and milliseconds(text) is None


def test_NEW_5_a_record_with_a_broken_number_is_listed_and_says_so() -> None:
    raw = {
        "id": "i",
        "mid": "m",
        "task": "t",
        "queue": "q",
        "strikes": LONG,
        "first_seen": "x",
        "reason": "r",
    }
    record = MessageRecord.from_hash(raw, State.NDLV)
    assert (record.strikes, record.first_seen) == (0, None)
    assert record.reason == "its record is damaged (strikes, first_seen): r"


@given(st.binary(max_size=40) | st.sampled_from([b"[]", b"5", b"null", b"{}", b'[[], 1, "x"]', b"[" * 9000]))
def test_a_start_or_a_parking_of_somebody_else_is_a_ValueError(raw: bytes) -> None:
    for kind in (Start, Parked):
        with pytest.raises(ValueError):
            kind.decode(raw)


@pytest.mark.parametrize(
    "text",
    [
        '{"rss_kb": 1e999}',
        '{"time_limit_s": NaN}',
        '{"signal": "x"}',
        '{"stack": 5}',
        '{"by_ms": %s}' % ("9" * 400),
    ],
)
def test_NEW_5_evidence_is_finite_or_is_left_out_by_readers_and_refused_by_import(text: str) -> None:
    assert sentence_of(Evidence.decode(text)) == ""
    with pytest.raises(BadExport):
        _check_evidence(text)


@pytest.mark.parametrize(
    ("brought", "of_task", "of_app", "proves_nothing"),
    [
        (0.1, 60, None, True),
        (0.1, None, None, True),
        (60, 60, None, False),
        (90, None, 60, False),
        (None, 60, None, False),
    ],
)
def test_NEW_3_a_limit_that_the_message_brought_itself_convicts_no_fingerprint(
    brought: Any, of_task: Any, of_app: Any, proves_nothing: bool
) -> None:
    task = SimpleNamespace(
        time_limit=of_task, app=SimpleNamespace(conf=SimpleNamespace(task_time_limit=of_app))
    )
    request: Any = SimpleNamespace(time_limits=(brought, None), _task=task)
    prop: Any = GuardedRequest.brought_its_limit
    assert prop.fget(request) is proves_nothing


def test_NEW_18_the_same_poison_sent_twice_does_not_pause_a_task() -> None:
    once = ended(FirstRuns(began=1, token="a", mid="m"), "a", FirstRunOutcome.DIED, 3, "f1")
    twice = ended(once, "b", FirstRunOutcome.DIED, 3, "f1")
    assert twice.over is Over.NOT and FirstRuns.decode(twice.encode()) == twice
    assert ended(twice, "a", FirstRunOutcome.DIED, 3, "f9") is twice, "told again"
    assert ended(twice, "c", FirstRunOutcome.DIED, 3, "f2").over is Over.DEATHS


@pytest.mark.parametrize(("kwargs", "fits"), [({"n": 1}, True), ({"m": 1}, False)])
def test_WAS_6_a_call_that_does_not_fit_the_signature_is_the_messages_fault(kwargs: Any, fits: bool) -> None:
    def header(n: int) -> None: ...

    request = SimpleNamespace(task=SimpleNamespace(__header__=header), args=(), kwargs=kwargs)
    assert _fits(request) is fits


def test_no_name_that_a_publisher_chooses_forges_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    forged = "i\n[2026-11-28 10:00:00] CRITICAL all is lost\x1b[2J"
    logging.getLogger("celery_poison").warning("celery_poison: %s: %s, %d", forged, ValueError(forged), 7)
    (record,) = caplog.records
    assert record.getMessage().isprintable() and record.getMessage().endswith(", 7")


def test_a_notification_calls_nobody_and_hides_no_link_whatever_a_task_is_named() -> None:
    named = "<!channel> @here <https://evil|shop> [a](https://evil) `x`"
    group = Group(
        group="0a",
        task=named,
        cause="oom",
        fingerprint="",
        newest="m",
        count=1,
        relapsed=0,
        first_seen=0.0,
        last_seen=0.0,
    )
    record = MessageRecord(id="<!here>", mid="m", task=named, queue="q", state="NDLV")
    told = Wording("shop", "poison").group(group, 0, record)
    assert not set("<>@[]|`") & set(told.text) and "://" not in told.text
    assert told.task == named and "<!here>" in told.command, "a program gets the names themselves"


def test_NEW_12_the_bytes_of_an_idempotency_key_are_not_the_text_that_they_spell() -> None:
    assert len({digest_of("t", b'"a"'), digest_of("t", "a"), digest_of("t", b"a")}) == 3


def test_NEW_5_headers_hide_what_redact_names_and_without_a_login_all_but_Celerys_own() -> None:
    headers = {"id": "i", "retries": 0, "x-api-token": "s", "tenant": {"password": "s", "name": "n"}}
    shown = headers_shown(("*token*", "*password*"), headers)
    assert shown["x-api-token"] == HIDDEN and shown["tenant"] == {"password": HIDDEN, "name": "n"}
    assert headers_shown(True, headers) == {"id": "i", "retries": 0, "x-api-token": HIDDEN, "tenant": HIDDEN}
