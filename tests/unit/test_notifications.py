"""When a group is told, and in which words: no Redis, no receiver."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_poison.causes import Evidence
from celery_poison.desk.search import Group
from celery_poison.extensions.holds.pauses import Pause, Scope
from celery_poison.extensions.notify.notifier import GROWTH, Notification, ReceiverState, Wording, due
from celery_poison.ledger.fleet_model import GateRecord
from celery_poison.model import MessageRecord
from tests.docs.pages import rows, section, text, words


@pytest.mark.parametrize(
    ("count", "before", "told"),
    [
        (1, None, True),
        (1000, None, True),
        (1, 1, False),
        (9, 1, False),
        (10, 1, True),
        (11, 1, True),
        (99, 10, False),
        (100, 10, True),
        (5, 10, False),  # some have left
    ],
)
def test_a_group_is_told_when_it_is_new_and_when_it_has_grown_tenfold(
    count: int, before: int | None, told: bool
) -> None:
    known = {} if before is None else {"g": before}
    assert due({"g": count}, known, 5) == ([("g",)] if told else [])


def test_what_is_new_goes_before_what_has_grown_and_the_large_before_the_small() -> None:
    counts, before = {"grown": 1000, "small": 1, "large": 50, "same": 50}, {"grown": 5}
    assert due(counts, before, math.inf) == [("large",), ("same",), ("small",), ("grown",)]


def test_what_is_more_than_may_be_told_is_summed_up_in_one() -> None:
    counts = {"a": 4, "b": 3, "c": 2, "d": 1}
    assert due(counts, {}, 4) == [("a",), ("b",), ("c",), ("d",)]
    assert due(counts, {}, 3) == [("a",), ("b",), ("c", "d")]
    assert due(counts, {}, 1) == [("a", "b", "c", "d")]
    assert due(counts, {}, 0) == due(counts, {}, -2) == []


_COUNTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 10_000))


@given(counts=_COUNTS, before=_COUNTS, left=st.integers(-1, 10))
def test_never_more_are_sent_than_may_be_and_nothing_due_is_left_out_or_told_twice(
    counts: dict[str, int], before: dict[str, int], left: int
) -> None:
    sent = due(counts, before, left)
    assert len(sent) <= max(0, left)
    told = [group for several in sent for group in several]
    wanted = {g for g, n in counts.items() if g not in before or n >= GROWTH * before[g]}
    assert len(told) == len(set(told)) and set(told) == (wanted if left >= 1 else set())
    # Once it is noted, the same look tells nothing more.
    assert due(counts, before | {group: counts[group] for group in told}, 10) == [] or left < 1


GROUP = Group(
    group="0a1b2c3d4e5f",
    task="shop.convert",
    cause="signal:11",
    fingerprint="",
    count=12,
    relapsed=0,
    first_seen=1_700_000_000.0,
    last_seen=1_700_000_009.0,
    newest="m1",
)
EXAMPLE = MessageRecord(
    id="1f2e3d4c-0000-4000-8000-000000000000",
    mid="m1",
    task="shop.convert",
    queue="celery",
    state="NDLV",
    arguments='7, token="(hidden)"',
    evidence=Evidence(stack=("convert (shop/tasks.py:41)",)),
)


def test_a_group_is_told_with_all_that_the_first_minute_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["celery", "-A", "shop", "worker"])
    told = Wording("shop", "poison").group(GROUP, 0, EXAMPLE).as_dict()
    text = told.pop("text")
    assert text == (
        "shop: 12 messages of shop.convert in quarantine: killed its process by SIGSEGV,"
        " in convert (shop/tasks.py:41). celery -A shop poison show 1f2e3d4c"
    )
    assert told == {
        "v": 1,
        "kind": "group",
        "app": "shop",
        "namespace": "poison",
        "group": "0a1b2c3d4e5f",
        "task": "shop.convert",
        "cause": "signal:11",
        "source": "convert (shop/tasks.py:41)",
        "count": 12,
        "before": 0,
        "oldest": 1_700_000_000.0,
        "id": "1f2e3d4c",
        "arguments": '7, token="(hidden)"',
        "command": "celery -A shop poison show 1f2e3d4c",
        "links": {},
    }


def test_NEW_14_a_notification_has_the_links_of_the_newest_message_in_its_text_too() -> None:
    links = {"Logs": "https://logs.example.com/?q={task_id}", "Host": "https://x/{host}"}
    told = Wording("shop", "poison", links).group(GROUP, 0, EXAMPLE)
    assert told.links == {"Logs": f"https://logs.example.com/?q={EXAMPLE.id}"}, "its worker is not known"
    assert told.text.endswith(f" 1f2e3d4c Logs: {told.links['Logs']}")
    assert not Wording("shop", "poison", links).group(GROUP, 0, None).links


def test_a_group_that_has_grown_says_what_it_was_and_one_whose_example_has_left_names_none() -> None:
    told = Wording("shop", "poison").group(GROUP, 1, None)
    assert "12 messages of shop.convert in quarantine now, 1 at the last notification: killed" in told.text
    assert (told.before, told.id, told.source) == (1, "", "") and told.command.endswith(" poison groups")


def test_a_sum_a_closed_gate_and_a_test_have_the_same_fields() -> None:
    wording = Wording("shop", "poison")
    several = wording.groups([GROUP, GROUP])
    assert (several.kind, several.count) == ("groups", 24)
    assert "2 more groups in quarantine are new or have grown: 24 messages" in several.text
    gate = wording.gate(GateRecord(closed=True, closed_at=5.0, deaths=3, fleet=6))
    assert gate.kind == "gate_closed" and gate.oldest == 5.0
    assert "3 of 6 workers died in a short time: the fleet gate is closed" in gate.text
    assert wording.test().kind == "test"


def test_whatever_a_receiver_raises_it_is_left_alone_for_a_while_and_no_secret_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(payload: object) -> None:
        raise RuntimeError("s3cret")

    delivery = ReceiverState("pager", "k", fails, 5)
    assert delivery.left() == 5
    assert not delivery.tell(Wording("shop", "poison").test())
    assert delivery.left() == 0
    assert "pager could not be notified: RuntimeError; tried again in 5 s" in caplog.text
    assert "s3cret" not in caplog.text


def test_the_how_to_tells_every_field_and_every_kind() -> None:
    table = {words(row[0])[0]: row for row in rows(section(text("howto/notify.md"), "The payload"))}
    assert list(table) == [field.name for field in fields(Notification)]
    wording = Wording("shop", "poison")
    made = [
        wording.group(GROUP, 0, None),
        wording.groups([GROUP]),
        wording.gate(GateRecord()),
        wording.deploy(Pause(scope=Scope.VERSION, name="shop.pay", version="1.2.3", note="SIGSEGV")),
        wording.blame(["shop.pay is suspicious"]),
        wording.test(),
    ]
    assert words(table["kind"][1]) == [notification.kind for notification in made]
