"""What an idle worker asks of its broker's Redis, where that does not say what comes (NEW-31)."""

from __future__ import annotations

import pytest

from celery_poison.broker.redis.receiving import LONGEST, PATIENCE
from celery_poison.broker.redis.tracking import Tracking
from tests.broker.kit import Receiver, Site

QUEUES = [f"q{number}" for number in range(30)]


def _calls(site: Site) -> dict[str, int]:
    stats = site.raw.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}


def _wait(site: Site, receiver: Receiver, rounds: int) -> dict[str, int]:
    """Wait for some rounds of it, and return how often each command was executed meanwhile."""
    before = _calls(site)
    receiver.drain(lambda: _calls(site).get("blmove", 0) >= before.get("blmove", 0) + rounds)
    return {name: calls - before.get(name, 0) for name, calls in _calls(site).items()}


def test_NEW_31_who_is_not_told_asks_for_all_its_queues_by_one_command_and_more_and_more_seldom(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracking, "begin", lambda tracking: None)
    receiver = site.receiver(queues=QUEUES)
    receiver.drain(lambda: receiver.channel._patience == LONGEST)
    asked = _wait(site, receiver, 3)
    assert asked.get("rpop", 0) == 0, "no list by itself"
    assert asked["exists"] <= 4

    site.send("m1", queue=receiver.channel._queue_cycle.items[0])
    receiver.receive(1)
    receiver.drain(lambda: receiver.channel._patience == LONGEST)
    site.send("m2", queue=receiver.channel._queue_cycle.items[-1], priority=9)
    receiver.receive(2)
    _wait(site, receiver, 3)
    assert receiver.channel._patience == PATIENCE, "another list is in use: it looks as often as ever"
    assert len(site.entries()) == 2
