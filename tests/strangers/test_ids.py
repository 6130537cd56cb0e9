"""Two publishes are two messages: nothing that was published anew is dropped for what an earlier one did."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from celery_poison.headers import MID, OURS, RELEASE, identify, is_unique, known_as, new_mid
from tests import PATIENCE, sampled
from tests.apps.harness import Fleet
from tests.outage.dying import DIES_AT
from tests.strangers.ids import Ids
from tests.worker.envelopes import CELERYS, KINDS, nested
from tests.worker.test_nobody_is_to_blame import _cut_broker_connections

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)


# --- an id that is used more than once ------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("second", [1, 2], ids=["equal to the byte", "with other arguments"])
def test_of_two_messages_with_one_id_whose_worker_is_killed_both_end(ids: Ids, second: int) -> None:
    calls = [("fleet.work", (n, 0.0, True), {"task_id": "x"}) for n in (1, second)]
    with ids.worker() as first:
        ids.publish_plainly(*calls)
        ids.await_that(lambda: sum(ids.begun().values()) == 2, "both run")
        first.kill_group()
        first.wait()
    with ids.worker("w2"):
        ids.await_that(lambda: sum(ids.begun().values()) > 2, "put back")
        ids.marks.open_gate()
        expected = {1: 2} if second == 1 else {1: 1, 2: 1}
        ids.await_that(lambda: ids.ended() == expected, f"each has ended: {expected}")
        ids.await_that(ids.nothing_runs, "forgotten")
    assert not ids.quarantine.list()


@BOTH
@pytest.mark.parametrize("whole", [True, False], ids=["its worker", "its process"])
def test_the_success_of_an_earlier_message_is_not_taken_for_that_of_a_later_one(
    ids: Ids, whole: bool
) -> None:
    with ExitStack() as workers:
        first = workers.enter_context(ids.worker())
        assert ids.send("work", 1, task_id="r").get(timeout=PATIENCE) == 1
        ids.await_that(ids.nothing_runs, "forgotten")
        ids.send("work", 2, 0.0, True, task_id="r")
        ids.await_that(lambda: ids.begun().get(2), "runs")
        ids.await_that(lambda: not ids.nothing_runs(), "on record")
        if whole:
            first.kill_group()
            first.wait()
            workers.enter_context(ids.worker("w2"))
        else:
            os.kill(next(mark.pid for mark in ids.marks.all("work", "start") if mark.n == 2), signal.SIGKILL)
        ids.await_that(lambda: ids.begun()[2] == 2, "runs again")
        ids.marks.open_gate()
        ids.await_that(lambda: ids.ended() == {1: 1, 2: 1}, "both have ended")


@BOTH
def test_an_id_is_used_again_after_its_first_message_ended_and_a_connection_was_lost(
    ids: Ids, request: pytest.FixtureRequest
) -> None:
    call = ("fleet.work", (1,), {"task_id": "nightly"})
    with ids.worker():
        ids.publish_plainly(call)
        ids.await_that(lambda: ids.ended() == {1: 1}, "ended")
        _cut_broker_connections(ids, request)  # type: ignore[arg-type]
        ids.await_that(lambda: "Connected to" in ids.log_text().rpartition("broker lost")[2], "is back")
        ids.publish_plainly(call, call)
        ids.await_that(lambda: ids.ended() == {1: 3}, "each publish has run")


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("held_back", [False, True], ids=["its copy waits", "its copy is parked"])
def test_TP1_8_an_end_whose_message_went_back_has_one_copy_and_no_second_publish(
    ids: Ids, held_back: bool, request: pytest.FixtureRequest
) -> None:
    """Its connection was lost while it ran: what comes back is no new message, though equal to the byte."""
    call = ("fleet.work", (1, 0.0, True), {"task_id": "x"})
    with ids.worker():
        ids.publish_plainly(call)
        ids.await_that(lambda: ids.begun() == {1: 1}, "runs")
        _cut_broker_connections(ids, request)  # type: ignore[arg-type]
        ids.await_that(lambda: "Connected to" in ids.log_text().rpartition("broker lost")[2], "is back")
        if held_back:
            ids.await_that(lambda: ids.events("parked"), "parked")
        ids.marks.open_gate()
        ids.await_that(lambda: ids.events("duplicate"), "its copy is recognised")
        ids.await_that(ids.nothing_runs, "nothing is left of it")
        assert ids.begun() == ids.ended() == {1: 1}
        ids.publish_plainly(call, call)
        ids.await_that(lambda: ids.ended() == {1: 3}, "each publish has run")


@pytest.mark.matrix
@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_NEW_9_a_worker_killed_once_it_has_used_up_such_an_end_has_the_copy_run_at_most_once_more(
    ids: Ids, request: pytest.FixtureRequest
) -> None:
    """Nothing tells that copy from a new message of the same id: it is not lost."""
    call = ("fleet.work", (1, 0.0, True), {"task_id": "x"})
    with ids.worker(env={DIES_AT: "celery_poison.worker.admission:Admission._acknowledge"}) as first:
        ids.publish_plainly(call)
        ids.await_that(lambda: ids.begun() == {1: 1}, "runs")
        _cut_broker_connections(ids, request)  # type: ignore[arg-type]
        ids.await_that(lambda: "Connected to" in ids.log_text().rpartition("broker lost")[2], "is back")
        ids.marks.open_gate()
        ids.await_that(lambda: not first.is_alive(), "it has used up the end, and not acknowledged the copy")
        first.kill_group()
    assert ids.marks.count("worker", "dies") and ids.events("duplicate") and ids.begun() == {1: 1}
    with ids.worker("w2") as second:
        ids.await_that(lambda: ids.ended() == {1: 2}, "the copy has run")
        second.stop()
    with ids.worker("w3") as third:
        third.wait_ready()
        ids.publish_plainly(("fleet.work", (2,), {"task_id": "y"}))
        ids.await_that(lambda: ids.ended() == {1: 2, 2: 1}, "and none more has come")
        ids.await_that(ids.nothing_runs, "nothing is left of it")
    assert not ids.quarantine.list() and not ids.quarantine.list(candidates=True)


# --- headers that are handed on -------------------------------------------------------------------------


@BOTH
def test_headers_handed_on_to_tasks_that_are_unknown_here_make_no_two_messages_one(ids: Ids) -> None:
    ids.app.tasks["fleet.parent"].delay("other.child", "others")
    with ids.worker(queues=["celery"]):
        ids.await_that(lambda: "fleet.parent" in ids.log_text() and "succeeded" in ids.log_text(), "sent")
    mids = set()
    with ids.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("others")
        for _ in range(2):
            message = queue.get(timeout=PATIENCE)
            mids.add(identify(message.headers, "", message.body))
            message.ack()
        queue.close()
    assert len(mids) == 2 and all(map(is_unique, mids))


@pytest.mark.parametrize(
    ("how", "broker_url"),
    sampled(
        [("send_task", "redis"), ("send_task", "rabbitmq"), ("chord", "redis"), ("replace", "rabbitmq")],
        [("set", "redis"), ("set", "rabbitmq"), ("group", "redis"), ("group", "rabbitmq")],
    ),
    indirect=["broker_url"],
)
def test_headers_handed_on_by_a_service_without_the_plugin_make_no_two_messages_one(
    ids: Ids, how: str
) -> None:
    # Its own message is stamped: whoever sends it has the plugin, and does not know the task.
    ids.app.send_task("plain.hands_on", (how,), queue="plain")
    with ids.plain_worker(), ids.worker() as first:
        beside = {0} if how == "chord" else {0, 1}
        ids.await_that(lambda: set(ids.begun()) == beside, "they run")
        first.kill_group()
        first.wait()
        ids.marks.open_gate()
        with ids.worker("w2"):
            ids.await_that(lambda: ids.ended() == {0: 1, 1: 1}, "both have ended")


# --- what tells messages apart --------------------------------------------------------------------------


def _headers(**other: Any) -> dict[str, Any]:
    return {"id": "i", "task": "t", "retries": 0, **other}


def test_a_stamp_is_for_the_message_that_it_was_made_for() -> None:
    stamped = _headers()
    stamped[MID] = mid = new_mid(stamped)
    assert identify(stamped, "tag") == mid
    for other in ({"id": "j"}, {"task": "u"}, {"retries": 1}, {"replaced_task_nesting": 1}):
        assert identify({**stamped, **other}, "tag") != mid, other
        assert identify({**stamped, **other}, "tag") != identify({**stamped, **other}, "another tag")
    assert identify(_headers(poison_mid="a producer's own name"), "tag") == "a producer's own name"


def test_without_a_stamp_a_message_is_known_by_its_tag_else_only_by_what_it_says() -> None:
    tagged = identify(_headers(), "tag")
    assert is_unique(tagged) and tagged != identify(_headers(), "other")
    assert identify(_headers(poison_mid=tagged), "a later tag") == tagged, "put back, it is the same"
    assert len(identify(_headers(), "t" * 5000)) < 100, "whatever tag a program writes"
    assert identify({**_headers(poison_mid=tagged), "id": "j"}, "x") != tagged, "handed on, it is another"
    equal = identify(_headers(), "", b"[[1]]")
    assert not is_unique(equal) and equal != identify(_headers(), "", b"[[2]]")


def test_whatever_a_publisher_writes_into_headers_there_is_an_identity_of_some_length() -> None:
    """An error here would let a redelivered message pass unguarded: it would kill without end."""
    deep = [nested(depth) for depth in range(600, 1000, 5)]
    rounds = [
        [{"count": each}] * 2 for each in (float("inf"), float("nan"), 10**4299, "9" * 5000, None, deep[-1])
    ]
    for name in (*CELERYS, *OURS, "x-death"):
        for value in (*KINDS.values(), *deep, *rounds, float("inf")):
            for tag in ("", "tag", value):
                assert len(identify({**_headers(), name: value}, tag, b"[]")) < 300, (name, tag)
    assert known_as(nested(2000)) and known_as(deep[0]) == known_as(nested(600))


def test_a_poison_whose_headers_are_nothing_that_a_broker_writes_is_convicted_all_the_same(
    new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    fleet = new_fleet(redis_url)
    poison = fleet.send("kill_group", headers={"x-death": [{"count": float("inf")}]})
    with fleet.supervise(1, give_up_after=5) as crew:
        fleet.await_that(lambda: fleet.quarantine.list() or crew.gave_up, "in quarantine")
        assert len(crew.deaths) <= 2
    (kept,) = fleet.quarantine.list()
    assert (kept.id, kept.crashes) == (poison.id, 2)


def test_what_rabbitmq_sends_back_after_it_was_rejected_is_a_new_message_each_time() -> None:
    mids = {identify(_headers(poison_mid="m", **{"x-death": [{"count": n}]}), "") for n in (1, 2)}
    assert len(mids) == 2
    released = _headers(poison_mid="m#2", **{"x-death": [{"count": 2}], RELEASE: 1})
    assert identify(released, "") == "m#2", "a released copy is the message that was kept"
    assert identify(_headers(poison_mid="m", **{"x-death": "rubbish"}), "")
