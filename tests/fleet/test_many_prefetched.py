"""Many workers hold many messages, and several of them die at once (EMS-6, TP1-8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import NamedTuple

import click
import pytest
import redis

from celery_poison.broker.redis.unacked import text
from celery_poison.broker.tags import owner_of
from celery_poison.ledger.fleet_model import Incident
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.apps.marks import Mark

#: The plugin's own, so that the time it takes is the one that users see.
INTERVALS = {"poison_heartbeat_interval": 3.0, "poison_activation_interval": 10.0}


class Crowd(NamedTuple):
    messages: int
    workers: int
    killed: int
    pool: str
    concurrency: int


def _told(crowd: Crowd) -> str:
    return f"{crowd.messages} over {crowd.workers} {crowd.pool} workers"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("broker_url", "crowd"),
    [
        ("redis", Crowd(1_000, 6, 2, "prefork", 1)),
        ("rabbitmq", Crowd(1_000, 6, 2, "threads", 2)),
        ("redis", Crowd(10_000, 20, 5, "prefork", 1)),
        ("redis", Crowd(10_000, 20, 5, "threads", 2)),
        ("rabbitmq", Crowd(10_000, 20, 5, "threads", 2)),
    ],
    indirect=["broker_url"],
    ids=lambda value: _told(value) if isinstance(value, Crowd) else value,
)
def test_EMS_6_all_that_killed_workers_had_prefetched_runs_and_nothing_twice_at_one_time(
    new_fleet: Callable[..., Fleet], broker_url: str, crowd: Crowd
) -> None:
    share = -(-crowd.messages // (crowd.workers * crowd.concurrency))
    fleet = new_fleet(broker_url, worker_prefetch_multiplier=share, **INTERVALS)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(fleet.worker(f"w{n}", crowd.pool, crowd.concurrency))
            for n in range(crowd.workers)
        ]
        for worker in workers:
            worker.wait_ready()
        for n in range(crowd.messages):
            fleet.send("gated", n)
        busy = crowd.workers * crowd.concurrency
        _wait(fleet, lambda: _all_prefetched(fleet, crowd.messages), "everything is prefetched")
        _wait(fleet, lambda: len(fleet.marks.count("gated", "start")) == busy, "everybody is busy")

        victims = workers[: crowd.killed]
        dead = {pid for victim in victims for pid in victim.session_pids()}
        running = {mark.n for mark in fleet.marks.all() if mark.pid in dead}
        assert len(running) == crowd.killed * crowd.concurrency
        held = _held_by(fleet)
        killed_at = fleet.quarantine.queries.now_ms()
        for victim in victims:
            victim.kill_group()
        _wait(fleet, lambda: len(_recovered(fleet)) == crowd.killed, "all deaths are recovered from", 60)
        click.echo(_told(crowd) + _timing(_recovered(fleet), killed_at))
        for incident in _recovered(fleet):
            assert incident.put_back == held[incident.worker.rpartition("/")[2]]
            assert incident.how == "gone"
            # A broker gives the first victim's messages to the next before that one dies, too: it may be
            # receiving one of them.
            assert crowd.concurrency <= incident.flagged <= crowd.concurrency + 1

        fleet.marks.open_gate()
        _wait(fleet, lambda: len(fleet.marks.all("gated", "end")) >= crowd.messages, "all ended", 200)
        _wait(fleet, lambda: not [*fleet.quarantine.queries.running()], "nothing runs")
        for worker in workers:
            worker.terminate()

    marks = fleet.marks.all()
    assert not overlapping(marks, dead), "nothing runs twice at one time"
    starts, ends = fleet.marks.count("gated", "start"), fleet.marks.count("gated", "end")
    assert {n for n, count in starts.items() if count > 1} == running, "whoever waited starts once"
    assert set(starts.values()) == {1, 2} and set(ends.values()) == {1}
    assert not fleet.quarantine.list() + fleet.quarantine.list(candidates=True), "nobody is convicted"


def overlapping(marks: Iterable[Mark], dead: set[int]) -> set[str]:
    """Return the ids of what was started, by the order of the marks, while an earlier start of it lived."""
    found, runs = set(), {}
    for mark in marks:
        if mark.event == "end":
            runs.pop(mark.id, None)
        else:
            if runs.get(mark.id) not in {None, *dead}:
                found.add(mark.id)
            runs[mark.id] = mark.pid
    return found


def _all_prefetched(fleet: Fleet, count: int) -> bool:
    """Whether no message waits in the queue."""
    if fleet.broker_url.startswith("redis"):
        return sum(_held_by(fleet).values()) == count
    with fleet.app.connection_for_read() as connection:
        return bool(connection.default_channel.queue_declare("celery", passive=True).message_count == 0)


def _held_by(fleet: Fleet) -> Counter[str | None]:
    """Return the number of unacknowledged messages by boot id; nothing on RabbitMQ, which does not tell."""
    if not fleet.broker_url.startswith("redis"):
        return Counter()
    tags = redis.Redis.from_url(fleet.broker_url).hkeys("unacked")
    return Counter(owner_of(text(tag)) for tag in tags)


def _recovered(fleet: Fleet) -> list[Incident]:
    return [incident for incident in fleet.quarantine.queries.incidents() if incident.finished_at]


def _timing(incidents: list[Incident], killed_at: int) -> str:
    noticed = sorted((incident.noticed_at or 0) - killed_at / 1000 for incident in incidents)
    last = max(incident.finished_at or 0 for incident in incidents) - killed_at / 1000
    deaths = f"{len(incidents)} killed, noticed after {noticed[0]:.2f} to {noticed[-1]:.2f} s"
    return f": {deaths}, all put back after {last:.2f} s"


def _wait(fleet: Fleet, condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    wait_until(condition, timeout, what=lambda: f"{what}\n{fleet.log_text()[-5000:]}", interval=0.05)
