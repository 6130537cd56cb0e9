"""What the active monitor does about poison_notify: who is told what, how often, and never twice."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_poison import signals
from celery_poison.extensions.deploy_guard.first_runs import FirstRuns, Over
from celery_poison.extensions.deploy_guard.version_record import VersionRecord
from celery_poison.extensions.notify import notifier as module
from celery_poison.extensions.notify.notes import Notes
from celery_poison.extensions.notify.notifier import Notifier
from celery_poison.plugin import plugin_of
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.events import Watcher
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.fleet.crew import Watched
from tests.fleet.forked import DIED, Forked, die
from tests.fleet.inbox import SECRET, Inbox

FENCE = 7


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with Inbox() as inbox:
        yield inbox


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_poison.extensions.notify.receivers.Receiver.__init__.__defaults__", (60.0,))


class Watch:
    """A notifier whose monitor holds the lock, and what it announced."""

    def __init__(self, fleet: Fleet, keeper: Keeper, **settings: Any) -> None:
        fleet.app.conf.update({f"poison_{name}": value for name, value in settings.items()})
        plugin = plugin_of(fleet.app)
        plugin.override({})
        self.announced: list[tuple[Any, dict[str, Any]]] = []
        self._queries, self.notes = keeper.ledger.read, Notes(keeper.ledger)
        keeper.ledger.client.set(keeper.ledger.keys.monitor_fence, FENCE)
        self.notifier = Notifier(fleet.app, keeper.ledger, plugin.settings, self._announce)

    def _announce(self, signal: Any, **facts: Any) -> None:
        self.announced.append((signal, facts))

    def round(self) -> None:
        """One look, and the end of all that it began."""
        self.notifier.round(FENCE)
        for delivery in self.notifier._deliveries:
            delivery.aside.join(120)
            assert not delivery.aside.is_busy

    @property
    def notified(self) -> list[int]:
        return sorted(self.notes.read().values())

    @property
    def counted(self) -> dict[str, int]:
        counts = self._queries.counts()
        return {word: counts.get(f"notified:{word}", 0) for word in ("sent", "failed")}


@pytest.fixture
def watch(fleet: Fleet, keeper: Keeper, inbox: Inbox) -> Callable[..., Watch]:
    return lambda **settings: Watch(fleet, keeper, **({"notify": [inbox.url]} | settings))


def _told(inbox: Inbox) -> list[tuple[str, str, int, int]]:
    told = [(each["kind"], each["task"], each["count"], each["before"]) for each in inbox.told]
    inbox.told.clear()
    return told


def test_a_group_is_told_when_it_is_new_then_tenfold_and_by_no_later_monitor_again(
    watch: Callable[..., Watch], keeper: Keeper, inbox: Inbox
) -> None:
    first = watch()
    first.round()
    assert not inbox.told, "nothing is in quarantine"
    keeper.send_and_keep("fleet.healthy", 0)
    first.round()
    first.round()
    (told,) = inbox.told
    assert told["arguments"] == "0" and told["command"].endswith(f"poison show {told['id']}")
    assert _told(inbox) == [("group", "fleet.healthy", 1, 0)]
    for number in range(1, 10):
        keeper.send_and_keep("fleet.healthy", number)
    keeper.send_and_keep("fleet.healthy", 0, cause="oom")
    second = watch()  # its process knows nothing of the first one's
    second.round()
    assert _told(inbox) == [("group", "fleet.healthy", 1, 0), ("group", "fleet.healthy", 10, 1)]
    first.round()
    second.round()
    assert not inbox.told and second.notified == [1, 10]
    assert second.counted == {"sent": 3, "failed": 0}


def test_arguments_are_redacted_as_lists_are(
    watch: Callable[..., Watch], fleet: Fleet, keeper: Keeper, inbox: Inbox
) -> None:
    fleet.send("healthy", 1)
    keeper.app.conf.poison_redact = True
    looking = watch()
    keeper.keep(keeper.receive())
    looking.round()
    assert inbox.told[0]["arguments"] == '"(hidden)"'


def test_a_group_that_was_empty_for_long_is_new_and_one_that_came_back_at_once_is_not(
    watch: Callable[..., Watch],
    fleet: Fleet,
    keeper: Keeper,
    inbox: Inbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looking = watch()
    for empty, again in ((600.0, []), (0.0, [("group", "fleet.healthy", 1, 0)])):
        monkeypatch.setattr(module, "EMPTY", empty)
        mid = keeper.send_and_keep("fleet.healthy", 0)
        looking.round()
        inbox.told.clear()
        assert fleet.quarantine.discard([mid])[0].done
        looking.round()
        assert looking.notified == ([1] if empty else [])
        mid = keeper.send_and_keep("fleet.healthy", 0)
        looking.round()
        assert _told(inbox) == again
        fleet.quarantine.discard([mid])


def test_of_many_groups_so_many_as_may_be_are_told_and_the_rest_in_one(
    watch: Callable[..., Watch], keeper: Keeper, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        keeper.send_and_keep("fleet.healthy", number, cause=f"exit:{number + 1}")
    keeper.send_and_keep("fleet.healthy", 5, cause="exit:5")
    looking = watch(notify_per_minute=3)
    looking.round()
    assert _told(inbox) == [
        ("group", "fleet.healthy", 2, 0),
        ("group", "fleet.healthy", 1, 0),
        ("groups", "", 3, 0),
    ]
    keeper.send_and_keep("fleet.healthy", 6, cause="oom")
    looking.round()
    assert not inbox.told, "the minute is not over"
    later = time.monotonic() + 61
    monkeypatch.setattr(module.time, "monotonic", lambda: later)
    looking.round()
    assert _told(inbox) == [("group", "fleet.healthy", 1, 0)]


def test_a_receiver_that_refuses_costs_a_line_a_count_and_a_growing_pause_and_holds_up_no_other(
    watch: Callable[..., Watch],
    keeper: Keeper,
    inbox: Inbox,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inbox.answer = 500
    looking = watch(notify=[inbox.url, "event"])
    keeper.send_and_keep("fleet.healthy", 0)
    clock = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: clock)
    with caplog.at_level(logging.WARNING):
        looking.round()
        ((signal, facts),) = looking.announced
        assert signal is signals.group_quarantined and facts["task"] == "fleet.healthy"
        assert set(facts) == signal.providing_args
        looking.round()
        assert len(inbox.told) == 1, "it pauses"
        for _ in range(9):
            clock += 601
            looking.round()
    pauses = [int(record.args[2]) for record in caplog.records]  # type: ignore[index, arg-type]
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert "http://127.0.0.1 could not be notified: HTTP 500" in caplog.text and SECRET not in caplog.text
    assert looking.counted == {"sent": 1, "failed": 10}
    inbox.answer = 200
    inbox.told.clear()
    keeper.send_and_keep("fleet.healthy", 1)
    clock += 601
    looking.round()
    assert _told(inbox) == [("group", "fleet.healthy", 2, 0)], "what has grown meanwhile is told as it is"
    assert len(looking.announced) == 1


def test_a_monitor_that_is_not_the_active_one_any_more_tells_nobody(
    watch: Callable[..., Watch], keeper: Keeper, inbox: Inbox
) -> None:
    looking = watch()
    keeper.send_and_keep("fleet.healthy", 0)
    keeper.ledger.client.set(keeper.ledger.keys.monitor_fence, FENCE + 1)
    looking.round()
    assert not inbox.told and looking.counted == {"sent": 0, "failed": 0}


def test_what_was_told_by_a_monitor_that_died_before_it_noted_that_is_told_again(
    watch: Callable[..., Watch], keeper: Keeper, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies, note = watch(), Notes.note

    def dead(self: Notes, fence: int, outcome: str = "", changes: Any = None) -> None:
        if outcome:
            raise RuntimeError("killed")
        note(self, fence, outcome, changes)

    keeper.send_and_keep("fleet.healthy", 0)
    with monkeypatch.context() as patch:
        patch.setattr(Notes, "note", dead)
        dies.round()
        dies.round()
        assert len(_told(inbox)) == 1, "as long as it lives it knows"
    watch().round()
    assert _told(inbox) == [("group", "fleet.healthy", 1, 0)]


def test_a_monitor_killed_between_telling_and_noting_is_followed_by_one_that_tells_once_more(
    watch: Callable[..., Watch], keeper: Keeper, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.send_and_keep("fleet.healthy", 0)
    with monkeypatch.context() as patch:
        note = Notes.note

        def dead(self: Notes, fence: int, outcome: str = "", changes: Any = None) -> None:
            if outcome:
                die()
            note(self, fence, outcome, changes)

        patch.setattr(Notes, "note", dead)
        victim = Forked(lambda: watch().round())
        victim.wait()
    assert victim.status == DIED and len(_told(inbox)) == 1
    for told in (1, 0):
        watch().round()
        assert len(_told(inbox)) == told, "a successor does not know, the next one does"


def test_a_fleet_gate_that_closed_is_told_once_each_time(
    watch: Callable[..., Watch], keeper: Keeper, inbox: Inbox
) -> None:
    ledger, looking = keeper.ledger, watch()
    for closed_at in (1000, 2000):
        row = {"until": 10**14, "closed_at": closed_at, "deaths": 3, "fleet": 6}
        ledger.client.hset(ledger.keys.gate, mapping=row)
        looking.round()
        looking.round()
        (told,) = inbox.told
        assert told["kind"] == "gate_closed" and "3 of 6 workers died" in told["text"]
        inbox.told.clear()
        ledger.client.hdel(ledger.keys.gate, "until")
        looking.round()
        assert not inbox.told


def test_NEW_18_a_task_that_is_paused_for_a_version_is_told_once(
    watch: Callable[..., Watch], keeper: Keeper, inbox: Inbox
) -> None:
    record, runs = VersionRecord(keeper.ledger, "1.2.3"), FirstRuns(dead=("a", "b"), over=Over.DEATHS)
    assert record.change(
        "shop.pay", record.look("shop.pay"), runs, cause="signal:11", note="SIGSEGV, shop.py:63"
    )
    for looking in (watch(), watch()):
        looking.round()
    (told,) = inbox.told
    assert (told["kind"], told["task"]) == ("deploy", "shop.pay")
    assert "1.2.3 kills shop.pay (SIGSEGV, shop.py:63): paused" in told["text"]
    assert told["command"].endswith("poison resume --task shop.pay")


def test_what_is_in_quarantine_is_counted_right_whatever_comes_and_goes(fleet: Fleet, keeper: Keeper) -> None:
    notifier = Watch(fleet, keeper).notifier

    def seen() -> dict[str, int]:
        return {group.cause: group.count for group in notifier.groups()}

    assert seen() == {}
    mids = [keeper.send_and_keep("fleet.healthy", number) for number in range(5)]
    assert seen() == {"signal:9": 5}
    keeper.send_and_keep("fleet.healthy", 5, cause="oom")
    assert seen() == {"signal:9": 5, "oom": 1}
    fleet.quarantine.discard(mids[:3])
    assert seen() == {"signal:9": 2, "oom": 1}
    # What a kept failure raised is its fingerprint: each is a group.
    for fingerprint in ("a", "a", "b"):
        fleet.send("healthy", 6)
        keeper.keep(keeper.receive(), cause="failure", fingerprint=fingerprint)
    assert sorted(group.count for group in notifier.groups() if group.cause == "failure") == [1, 2]


def test_a_fleet_tells_a_webhook_a_command_and_who_hears_events_of_a_poison_beside_a_receiver_that_hangs(
    new_crew: Callable[..., Watched], redis_url: str, inbox: Inbox, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    command = [sys.executable, "-c", f"import sys; open({str(told)!r}, 'a').write(sys.stdin.read())"]
    with Inbox() as hangs:
        hangs.answer = 0
        crew = new_crew(redis_url, poison_notify=[hangs.url, inbox.url, command, "event"])
        with Watcher(crew.app) as watcher, crew.worker(args=["-E"]) as worker:
            crew.await_that(lambda: worker.hostname in watcher.state.workers, "it sends events")
            crew.send("abort")
            crew.await_that(lambda: hangs.told and inbox.told, "both webhooks were asked")
            wait_until(lambda: told.exists() and told.read_text(), what=worker.log_text)
            crew.await_that(lambda: watcher.told("poison-group-quarantined"), "the event was sent")
            assert crew.send("healthy", 1).get(timeout=PATIENCE) is not None, "nobody waits for it"
            log = worker.log_text()
    (payload,) = inbox.told
    assert (payload["task"], payload["count"], payload["before"]) == ("fleet.abort", 1, 0)
    assert payload["source"].startswith("abort (") and "abort (" in payload["text"]
    assert payload["command"].endswith(f"poison show {payload['id']}")
    assert json.loads(told.read_text()) == payload
    (event,) = watcher.told("poison-group-quarantined")
    assert {name: event[name] for name in payload} == payload
    assert SECRET not in log


def test_an_address_of_apprises_gets_the_sentence_and_no_log_line_shows_the_address(
    watch: Callable[..., Watch], keeper: Keeper, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    others = [f"nobody://example.com/{SECRET}", f"mailtos://me:{SECRET}@example.com"]
    looking = watch(notify=[inbox.url.replace("http://", "json://"), *others])
    keeper.send_and_keep("fleet.healthy", 0)
    with caplog.at_level(logging.WARNING):
        looking.round()
    (told,) = inbox.told
    assert "1 message of fleet.healthy in quarantine" in told["message"] and "poison show" in told["message"]
    assert "nobody://... could not be notified: Apprise does not know such an address" in caplog.text
    inbox.answer = 500
    keeper.send_and_keep("fleet.healthy", 1, cause="oom")
    with caplog.at_level(logging.WARNING):
        looking.round()
    assert "json://... could not be notified: Apprise could not deliver it" in caplog.text
    assert SECRET not in caplog.text and "127.0.0.1" not in caplog.text
