"""When a worker counts as one that lives and consumes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_poison.cells.trial import PoolFacts
from celery_poison.desk.queues import GRACE, QUIET_FOR, Deaf, is_quiet, missed
from celery_poison.ledger.fleet_model import WorkerRecord
from celery_poison.settings import Settings
from celery_poison.worker.announce import Complaints
from celery_poison.worker.heartbeat import Shutdown, WorkerFacts
from celery_poison.worker.lease import Incarnation
from celery_poison.worker.threads import EventLoop
from tests.sites import site

#: Seconds of Redis' clock.
NOW = 1_000_000.0
QUIETLY = WorkerRecord(
    worker="w1@h/b", queues="a,b", last_beat=NOW, heard_at=NOW - QUIET_FOR - 1, started_at=NOW - 3600
)
#: So long before the heartbeat messages were seen to wait.
BEFORE = NOW - GRACE


def test_a_worker_that_heard_nothing_while_messages_waited_is_deaf() -> None:
    assert missed(QUIETLY, BEFORE, {"a": 1, "b": 0}, {"a": 3, "b": 0}) == {"a": 3}


@pytest.mark.parametrize(
    "otherwise",
    [
        {"heard_at": NOW - QUIET_FOR},
        {"heard_at": None},
        {"last_beat": None},
        {"alive": False},
        {"stopping": True},
        {"queues": ""},
    ],
    ids=["heard lately", "does not say", "never beat", "silent", "leaving", "consumes nothing on purpose"],
)
def test_a_worker_is_not_deaf_that(otherwise: dict[str, Any]) -> None:
    worker = replace(QUIETLY, **otherwise)
    assert not is_quiet(worker)
    assert not missed(worker, BEFORE, {"a": 1}, {"a": 1})


@pytest.mark.parametrize(
    ("before", "now"),
    [({}, {}), ({"a": 0}, {"a": 5}), ({"a": 5}, {"a": 0}), ({"a": 5}, {"b": 5}), ({"c": 5}, {"c": 5})],
    ids=["nothing waits", "came just now", "was fetched", "another queue", "not its queue"],
)
def test_nobody_is_deaf_for_whom_no_message_waited_all_the_while(
    before: dict[str, int], now: dict[str, int]
) -> None:
    assert not missed(QUIETLY, BEFORE, before, now)


def test_a_heartbeat_that_may_not_know_yet_of_a_message_convicts_nobody() -> None:
    assert not missed(QUIETLY, BEFORE + 0.1, {"a": 1}, {"a": 1})


def test_the_story_names_the_worker_since_when_what_waits_and_the_cure() -> None:
    told = Deaf("w1@h/b", NOW, 90.0, {"b": 1, "a": 2}).story
    assert "w1@h/b" in told and "(2m)" in told and told.endswith("3 messages wait in a, b; cure: restart it")
    assert "1 message waits in a;" in Deaf("w1@h/b", NOW, 90.0, {"a": 1}).story


# --- what a heartbeat tells -------------------------------------------------------------------------------


@dataclass
class Channel:
    heard_at: float = 0.0
    is_full: bool = False


class Clock:
    """Replaces `time.monotonic` where a heartbeat reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("celery_poison.worker.heartbeat.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Reception:
    """What one worker's heartbeat says of when it was heard."""

    def __init__(self, loop: EventLoop, slots: int) -> None:
        pool = PoolFacts("solo", slots, True, None, None)
        app, self.complaints = Celery(broker="redis://nowhere", set_as_current=False), Complaints()
        others: Any = SimpleNamespace(has_reconnected=False, missing=0, room=1, lacks="")
        self._payload = WorkerFacts(
            site=site(
                app=app, settings=Settings(), me=Incarnation("w1@h"), loop=loop, complain=self.complaints
            ),
            pool=pool,
            shutdown=Shutdown(),
            holds=(),
            pulse=SimpleNamespace(portrait=SimpleNamespace(last=str), stack=(), condemned_at=None),  # type: ignore[arg-type]
            **dict.fromkeys(("cells", "rejoin", "deferred_cleanup"), others),
        )

    def quiet_ms(self) -> int | str:
        return self._payload.now()["quiet_ms"]


def _on(channel: Any, slots: int = 2) -> tuple[Reception, Complaints]:
    loop = EventLoop()
    loop.consumer = SimpleNamespace(task_consumer=SimpleNamespace(channel=channel))
    reception = Reception(loop, slots)
    return reception, reception.complaints


def test_the_time_since_the_last_poll_is_told_and_since_the_start_before_the_first(clock: Clock) -> None:
    channel = Channel()
    reception, _ = _on(channel)
    clock.now = 1007.0
    assert reception.quiet_ms() == 7000
    channel.heard_at = 1005.0
    assert reception.quiet_ms() == 2000


def test_whoever_has_no_room_is_not_quiet_nor_quiet_for_long_right_afterwards(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel()
    reception, _ = _on(channel, slots=1)
    clock.now, channel.is_full = 2000.0, True
    assert reception.quiet_ms() == 0
    clock.now, channel.is_full = 2001.0, False
    assert reception.quiet_ms() == 1000
    monkeypatch.setattr("celery_poison.worker.heartbeat.active_requests", {object()})
    clock.now = 3000.0
    assert reception.quiet_ms() == 0


def test_a_worker_without_a_consumer_goes_on_being_quiet(clock: Clock) -> None:
    reception, _ = _on(None)
    clock.now = 1090.0
    assert reception.quiet_ms() == 90_000


def test_what_cannot_be_known_is_left_out(clock: Clock) -> None:
    assert _on(object())[0].quiet_ms() == "", "Celery's own transport"

    class Broken(Channel):
        heard_at = property(lambda self: 1 / 0)  # type: ignore[assignment]

        def __init__(self) -> None: ...

    reception, errors = _on(Broken())
    assert reception.quiet_ms() == "" and errors.count == 1
