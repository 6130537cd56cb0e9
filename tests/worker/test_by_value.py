"""What falls under a hold by value does not begin, whatever its task, until the hold is lifted (NEW-27)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from celery_poison import Quarantine
from celery_poison.broker.kinds import depth
from celery_poison.errors import MessageNotFound
from celery_poison.ledger import decisions as transitions
from celery_poison.model import MessageRecord
from celery_poison.testing import RedisServer
from tests import PATIENCE, sampled
from tests.apps.factory import build_app
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.fleet.forked import DIED, Forked
from tests.worker.apps import DEADLY
from tests.worker.conftest import Crew

POOLS = ("threads", "solo", "gevent", "eventlet")
CELLS = sampled(
    [("redis", "prefork"), ("rabbitmq", "prefork")],
    [(broker, pool) for pool in POOLS for broker in ("redis", "rabbitmq")],
)


def _kept(crew: Crew, *ids: str) -> list[MessageRecord]:
    crew.await_that(lambda: {*ids} <= {record.id for record in crew.quarantine.list()}, "in quarantine")
    by_id = {record.id: record for record in crew.quarantine.list()}
    return [by_id[id] for id in ids]


def _parked(crew: Crew) -> int:
    return int(crew.quarantine.queries.totals()["parked"])


def _running(crew: Crew) -> set[str]:
    return {start.id for _, start, _ in crew.quarantine.queries.running()}


def _log_has(crew: Crew, sentence: str) -> None:
    crew.await_that(lambda: sentence in crew.log_text(), sentence)


@pytest.mark.parametrize(("broker_url", "pool"), CELLS, indirect=["broker_url"])
def test_NEW_27_what_falls_under_a_hold_does_not_begin_until_it_is_lifted_whatever_its_task(
    new_crew: Callable[..., Crew], broker_url: str, pool: str
) -> None:
    crew = new_crew(broker_url, worker_prefetch_multiplier=8)
    healthy, desk = crew.app.tasks["fleet.healthy"], crew.quarantine
    with crew.worker(concurrency=1, pool=pool) as worker:
        worker.wait_ready()
        early = []
        if pool == "prefork":
            crew.send("gated", 1)
            crew.await_that(lambda: crew.starts("gated"), "it holds the only slot")
            early = [crew.send("healthy", n) for n in (42, 43)]
            crew.await_that(lambda: crew.log_text().count("fleet.healthy") >= 2, "received already")
        first = desk.hold("n=42", actor="ann", note="its data is broken")
        second = desk.hold(["n>=70 and seconds=0.02"], task="fleet.h*", wait=True, actor="ann")
        assert (first.number, second.number) == (1, 2)
        with pytest.raises(MessageNotFound, match="'secnods': did you mean seconds"):
            desk.hold("secnods=1")  # although one task takes any name
        _log_has(crew, "hold 2: n>=70 and seconds=0.02 of fleet.h*, by ann")
        held = [
            *early[:1],
            crew.send("healthy", 42),
            healthy.apply_async((), {"n": "42"}),
            healthy.apply_async((42,), compression="gzip"),
            crew.send("segfault", 42),
        ]
        waiting = [crew.send("healthy", 70), healthy.apply_async((71,), countdown=0.5)]
        others = [*early[1:], *(crew.send("healthy", n) for n in (41, 44)), crew.send("healthy", 71, 0.01)]
        crew.marks.open_gate()
        assert all(each.get(timeout=PATIENCE) for each in others), "nobody behind them waits"
        for record in _kept(crew, *(each.id for each in held)):
            assert (record.cause, record.crashes, record.strikes, record.failures) == ("held", 0, 0, 0)
            assert record.reason == "hold 1: n=42, by ann: its data is broken"
        crew.await_that(lambda: _parked(crew) == 2, "they wait in place")
        assert {record.reason[:18] for record in desk.list(state="TBDL")} == {"parked until its i"}
        assert [(each.quarantined, each.waiting) for each in desk.value_holds()] == [(len(held), 0), (0, 2)]
        assert set(crew.marks.count("healthy", "start")) <= {41, 43, 44, 71} and not crew.starts("segfault")

        crew.marks.repair()
        third = desk.hold("n=42", task="fleet.segfault", actor="bob")
        lifted = desk.lift(1, actor="ann", note="repaired")
        assert lifted.lifted and lifted.kept == 1 and all(each.done for each in lifted.outcomes)
        assert desk.lift(third.number).outcomes[0].id == held[-1].id, "what both caught goes with the last"
        assert desk.lift(2).lifted and not desk.value_holds()
        results = [each.get(timeout=PATIENCE) for each in (*held, *waiting)]
        assert [str(each) for each in results] == [*["42"] * (len(held) - 1), "repaired", "70", "71"]
        assert crew.send("healthy", 42).get(timeout=PATIENCE) == 42, "nothing is caught any more"
        crew.await_that(crew.nothing_runs, "forgotten")
        crew.await_that(crew.no_strikes, "nobody is to blame")
    assert not _parked(crew)
    events = [(each["event"], each["actor"]) for each in crew.events("hold_added", "hold_lifted")]
    assert sorted(events)[0] == ("hold_added", "ann") and len(events) == 6


def test_NEW_27_what_a_person_releases_runs_in_spite_of_a_hold_and_a_hold_ends_by_itself(
    new_crew: Callable[..., Crew], redis_url: str
) -> None:
    crew = new_crew(redis_url)
    with crew.worker(concurrency=1) as worker:
        worker.wait_ready()
        crew.quarantine.hold("n=42", actor="ann", seconds=1)
        crew.quarantine.hold("n=43", actor="ann")
        _log_has(crew, "hold 2: n=43, by ann")
        sent = crew.send("healthy", 43)
        (record,) = _kept(crew, sent.id)
        assert crew.quarantine.release([record.mid])[0].done and sent.get(timeout=PATIENCE) == 43
        crew.await_that(lambda: crew.quarantine.value_holds()[0].over, "its time has passed")
        crew.await_that(lambda: crew.send("healthy", 42) and crew.done() > 1, "it catches nothing")
    assert crew.quarantine.lift(1).lifted and crew.quarantine.lift(2).lifted


@pytest.mark.parametrize(
    ("broker_url", "pool"),
    sampled(
        [("redis", "prefork")],
        [
            *(("rabbitmq", "prefork"), ("redis", "threads"), ("redis", "solo")),
            *(("rabbitmq", "gevent"), ("rabbitmq", "eventlet")),
        ],
    ),
    indirect=["broker_url"],
)
def test_NEW_27_a_worker_that_is_killed_at_any_step_of_a_hold_loses_nothing_and_runs_nothing(
    crew: Crew, pool: str
) -> None:
    crew.module = "tests.worker.dies_holding"
    crew.quarantine.hold("n=1", actor="ann")
    crew.quarantine.hold("n=2", wait=True, actor="ann")
    with crew.supervise(pool=pool, concurrency=1):
        held = [crew.send("healthy", n) for n in (1, 2, 1, 2)]
        crew.await_that(lambda: len(crew.quarantine.list()) == 2 and _parked(crew) == 2, "all are kept")
        steps = {f"{when} {where}" for when in ("before", "after") for where in ("quarantine", "parking")}
        crew.await_that(lambda: all(crew.marks.all(step, "dies") for step in steps), "killed at each step")
        assert not crew.starts("healthy") and not crew.events("crashed")
        assert [crew.quarantine.lift(number).lifted for number in (1, 2)] == [True, True]
        assert [each.get(timeout=PATIENCE) for each in held] == [1, 2, 1, 2]
        crew.await_that(crew.nothing_runs, "forgotten")
        crew.await_that(crew.no_strikes, "nobody is to blame")
    assert crew.marks.count("healthy", "start") == {1: 2, 2: 2}


@pytest.mark.parametrize(
    ("broker_url", "step"), sampled([("redis", 4)], [("redis", 1), ("rabbitmq", 1)]), indirect=["broker_url"]
)
def test_NEW_27_a_lift_that_is_killed_at_any_command_is_finished_by_the_next(
    fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    sent, queues = count(), list[str]()
    for number in count(1, step):
        queues.append(f"lift{number}")  # its own: what is there later stays out of the way
        hold = fleet.quarantine.hold("n>=0", actor="ann")
        for _ in range(2):
            fleet.send("healthy", next(sent), queue=queues[-1])
            keeper.keep(keeper.receive(queues[-1]), "held", 0, reason=hold.story)
        operator = Forked(lambda hold=hold: Quarantine(build_app(fleet.environ())).lift(hold.number), number)
        operator.wait()
        there = _waiting(fleet, queues[-1]), len(fleet.quarantine.list())
        assert there[0] <= 2 <= sum(there), f"lost or doubled at {number}"
        with monkeypatch.context() as patch:
            patch.setattr(transitions, "DECISION_PATIENCE_MS", 0)
            if fleet.quarantine.list() or fleet.quarantine.value_holds():
                assert fleet.quarantine.lift(hold.number).lifted
        assert not fleet.quarantine.list() and not fleet.quarantine.value_holds(), f"not done: {number}"
        if operator.status != DIED:
            break
    assert number > 8, "it was killed at every command"
    expected = set(range(next(sent)))
    with fleet.worker(queues=queues):
        fleet.await_that(lambda: set(fleet.marks.count("healthy", "end")) == expected, "all ran")
        fleet.await_that(lambda: not any(_waiting(fleet, each) for each in queues), "older copies are gone")
        fleet.await_that(lambda: not fleet.quarantine.list(candidates=True), "all are cleared")
    assert set(fleet.marks.count("healthy", "start").values()) == {1}


def _waiting(fleet: Fleet, queue: str) -> int:
    with fleet.app.connection_for_read() as connection:
        return depth(connection, queue)


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_27_what_kills_who_reads_it_for_a_hold_is_convicted_and_nothing_else_is_lost(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, accept_content=["json", "pickle", DEADLY])
    crew.quarantine.hold("n=42", actor="ann")
    healthy = crew.app.tasks["fleet.healthy"]
    bomb = healthy.apply_async(("dies",), serializer=DEADLY)
    held = [healthy.apply_async((42,), serializer=how) for how in ("json", "pickle", DEADLY)]
    others = [healthy.apply_async((n,), serializer=how) for n, how in enumerate(("json", "pickle", DEADLY))]
    with crew.supervise(2, concurrency=1) as workers:
        crew.await_that(lambda: {*crew.marks.count("healthy", "end")} >= {0, 1, 2}, "the others go on")
        assert [each.get(timeout=PATIENCE) for each in others] == [0, 1, 2]
        kept = {record.id: record for record in _kept(crew, bomb.id, *(each.id for each in held))}
        accused = kept.pop(bomb.id)
        assert (accused.cause, accused.crashes, accused.strikes) == ("receive", 2, 2)
        assert {(each.cause, each.crashes, each.strikes) for each in kept.values()} == {("held", 0, 0)}
        crashed = [entry["cause"] for entry in crew.events("crashed") if entry["id"] == bomb.id]
        assert crashed == ["receive"] * 2 and len(workers.deaths) == 2
        assert [mark.id for mark in crew.marks.all("decodes", "dies")] == ["for a hold"] * 2
        assert crew.quarantine.lift(1).lifted
        assert [each.get(timeout=PATIENCE) for each in held] == [42] * 3
        # On RabbitMQ, what ended just before its worker died is remembered: it may be delivered once more.
        crew.await_that(lambda: not _running(crew) & {each.id for each in held}, "forgotten")
        assert [record.id for record in crew.quarantine.list()] == [bomb.id]
        crew.await_that(lambda: not crew.quarantine.list(candidates=True), "who ran beside it is cleared")
    assert {*crew.marks.count("healthy", "end")} == {0, 1, 2, 42} and crew.starts("healthy") >= 6


def test_NEW_27_while_redis_is_away_what_is_held_runs_and_the_hold_stands_again_when_it_is_back(
    new_crew: Callable[..., Crew], redis_url: str, new_server: Callable[..., RedisServer]
) -> None:
    server = new_server()
    crew = new_crew(redis_url, poison_redis_url=server.url())
    with crew.worker(concurrency=1) as worker:
        worker.wait_ready()
        crew.quarantine.hold("n=42", actor="ann")
        _log_has(crew, "hold 1: n=42, by ann")
        (first,) = _kept(crew, crew.send("healthy", 42).id)
        server.pause()
        crew.send("healthy", 42)
        crew.await_that(lambda: crew.done() == 1, "it runs")
        _log_has(crew, "messages run past the holds by value while Redis is away")
        server.resume()
        crew.await_that(crew.nothing_runs, "it is back")
        _kept(crew, crew.send("healthy", 42).id)
    assert crew.starts("healthy") == 1 and first.cause == "held"
