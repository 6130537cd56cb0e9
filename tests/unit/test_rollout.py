"""Whether a message goes back for a worker that knows its task: every answer, without Redis (NEW-29)."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.extensions.rollout import Rollout
from celery_poison.extensions.rollout.knowers import LONGEST, LONGEST_IDLE, Knowers, decide, sort_out
from celery_poison.extensions.rollout.settings import RolloutSettings
from celery_poison.extensions.rollout.task_names import digest_of
from celery_poison.headers import RELEASE, UNKNOWN_SINCE
from celery_poison.keep.stored_message import parcel_of
from celery_poison.ledger.fleet_model import WorkerRecord
from celery_poison.model import StoredMessage
from celery_poison.portrait import Portrait

HOUR = 3600.0


def _worker(node: str, queues: str = "celery", paused: str = "") -> WorkerRecord:
    return WorkerRecord(worker=f"{node}/1", node=node, queues=queues, paused=paused)


def test_NEW_29_workers_are_sorted_by_what_they_know_and_consume() -> None:
    new, old, silent = "new", "old", ""
    workers = [
        (_worker("a"), old),
        (_worker("b"), new),
        (_worker("c", "mail"), new),
        (_worker("d", "", paused="celery"), new),
        (_worker("e"), silent),
        (_worker("f", "mail"), silent),
    ]
    assert sort_out(workers, {new}, "celery") == Knowers(("b", "d"), ("c",), lacking=1, silent=1)
    assert sort_out(workers, (), "celery") == Knowers((), (), lacking=3, silent=1)
    assert sort_out([], (), "celery") == Knowers()


@pytest.mark.parametrize(
    ("busy", "paused", "is_idle"), [(1, "", True), (2, "", False), (1, "celery", False), (None, "", False)]
)
def test_NEW_29_it_is_seen_whether_who_knows_a_task_has_a_free_slot(
    busy: int | None, paused: str, is_idle: bool
) -> None:
    portrait = None if busy is None else Portrait(slots=2, slots_busy=busy)
    worker = replace(_worker("a", "" if paused else "celery", paused), portrait=portrait)
    assert sort_out([(worker, "new")], {"new"}, "celery").is_idle == is_idle


def test_NEW_29_beside_a_free_slot_no_pause_is_long_and_after_a_restart_it_waits_for_a_while() -> None:
    assert decide(Knowers(here=("b",), is_idle=True), "celery", 60.0, HOUR).pause == LONGEST_IDLE
    gone = Knowers(left=("b",), left_ago=9.0, lacking=1, silent=1)
    assert decide(gone, "celery", 1.0, HOUR, 10.0) == (0.5, "until a worker is back that knew its task: b")
    assert decide(gone, "celery", HOUR, HOUR, 10.0) == (0, "; known to b, gone for 9s")
    assert decide(gone, "celery", 1.0, HOUR, 5.0) == (0, "; known to b, gone for 9s")
    assert decide(gone._replace(left_ago=math.inf), "celery", 1.0, HOUR, 5.0) == (0, "; known to b, gone")


def test_NEW_29_it_goes_back_later_and_later_while_somebody_knows_its_task() -> None:
    waited, pauses = 0.0, list[float]()
    while (postponed := decide(Knowers(here=("b",)), "celery", waited, HOUR)).pause:
        pauses.append(postponed.pause)
        waited += postponed.pause
    assert pauses == sorted(pauses) and pauses[0] == 0.5 and pauses[-1] == LONGEST
    assert 100 < len(pauses) < 140, "no busy loop, and no end before an hour is over"
    assert postponed.note == "; known to b, where it has not arrived in 1h"


def test_NEW_29_no_two_pauses_of_a_message_are_equal_so_that_they_keep_step_with_nothing() -> None:
    settings = SimpleNamespace(activation_interval=10.0, of=lambda _: RolloutSettings())
    rollout, ledger = Rollout(SimpleNamespace(settings=settings)), object()
    knowers = Knowers(here=("b",), is_idle=True)
    names: Any = SimpleNamespace(ledger=ledger, who_knows=lambda *_: knowers)
    rollout._names = names
    message = SimpleNamespace(headers={UNKNOWN_SINCE: int(time.time() * 1000) - 60_000})
    site = SimpleNamespace(ledger=ledger)
    pauses = {next(iter(rollout.postponing(site, message, "new", "celery"))).pause for _ in range(50)}
    assert len(pauses) == 50 and LONGEST_IDLE / 2 <= min(pauses) < max(pauses) <= LONGEST_IDLE
    assert [decide(knowers, "celery", 60.0, HOUR, luck=luck).pause for luck in (0.0, 0.5, 1.0)] == [1, 1.5, 2]


@pytest.mark.parametrize(
    ("knowers", "note"),
    [
        (Knowers(), ""),
        (Knowers(lacking=3), ""),
        (Knowers(away=("c", "b"), silent=1), "; known to b, c, where celery is not consumed"),
        (Knowers(lacking=1, silent=2), "; 2 workers of celery did not say what they know"),
    ],
)
def test_NEW_29_where_nobody_can_take_it_it_is_quarantined_at_once_and_says_who_knows_it(
    knowers: Knowers, note: str
) -> None:
    assert decide(knowers, "celery", 0.0, HOUR) == (0, note)


def test_NEW_29_a_released_copy_waits_anew() -> None:
    headers = {"task": "new", UNKNOWN_SINCE: 1}
    stored = StoredMessage(body=b"", content_type="", content_encoding="", headers=headers)
    assert parcel_of(stored, "celery", 2).headers == {"task": "new", RELEASE: 2}


def test_NEW_29_equal_names_have_one_digest_in_whatever_order() -> None:
    assert digest_of(["a", "b"]) == digest_of(iter(["b", "a"])) != digest_of(["ab"])
