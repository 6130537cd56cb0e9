"""Release, fail and discard under adversity: whatever goes wrong is said clearly, and nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison import Quarantine
from celery_poison.broker.publish import Publisher
from celery_poison.desk import care
from celery_poison.desk.decisions import Outcome
from celery_poison.desk.lookup import AmbiguousId
from celery_poison.errors import LedgerUnavailable, MessageNotFound, SchemaMismatch
from celery_poison.testing import RedisServer, wait_until
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper

Build = Callable[..., Any]


def refused(outcomes: list[Outcome]) -> str:
    (outcome,) = outcomes
    assert not outcome.done
    return outcome.error


# --- two operators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["release", "fail", "discard"])
def test_SAP_7_of_two_operators_at_one_message_one_wins_and_the_other_hears_who(
    other: str, fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    at_it, go_on = threading.Event(), threading.Event()
    publish = Publisher.publish_each

    def slowly(*args: Any) -> Any:
        at_it.set()
        assert go_on.wait(PATIENCE)
        return publish(*args)

    monkeypatch.setattr(Publisher, "publish_each", slowly)
    won: list[Outcome] = []
    winner = threading.Thread(target=lambda: won.extend(fleet.quarantine.release([mid], actor="ann")))
    winner.start()
    assert at_it.wait(PATIENCE)
    assert "ann is deciding about this message" in refused(getattr(Quarantine(fleet.app), other)([mid]))
    go_on.set()
    winner.join()
    assert won[0].done
    assert len(keeper.raw_on_redis()) == 1
    assert "in state TBDL, not in quarantine: it was released" in refused(
        getattr(Quarantine(fleet.app), other)([mid])
    )


def test_SAP_7_two_operators_releasing_everything_publish_each_message_once(
    fleet: Fleet, keeper: Keeper
) -> None:
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(30)]
    outcomes: list[Outcome] = []
    start = threading.Barrier(2)

    def release(order: int) -> None:
        quarantine = Quarantine(fleet.app)
        start.wait()
        outcomes.extend(quarantine.release(mids[::order], actor=f"operator {order}"))

    operators = [threading.Thread(target=release, args=(order,)) for order in (1, -1)]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join()
    assert Counter(outcome.mid for outcome in outcomes if outcome.done) == Counter(mids)
    assert len(keeper.raw_on_redis()) == len(mids)
    assert not fleet.quarantine.list()


def test_a_decision_that_could_not_be_carried_out_leaves_the_message_open_to_everybody(
    fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish_each", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fleet.quarantine.release([mid], actor="ann")
    assert fleet.quarantine.discard([mid], actor="bob")[0].done


# --- ids and tasks that are not there --------------------------------------------------------------


@pytest.mark.parametrize("verb", ["release", "fail", "discard"])
def test_an_id_that_does_not_exist_is_refused_and_does_not_stop_the_others(
    verb: str, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    unknown, known = getattr(fleet.quarantine, verb)(["nowhere", mid])
    assert (unknown.done, unknown.mid, unknown.id) == (False, "", "nowhere")
    assert "no message 'nowhere'" in unknown.error
    assert known.done


def test_reading_an_id_that_does_not_exist_says_so(fleet: Fleet) -> None:
    for read in (fleet.quarantine.get, fleet.quarantine.message):
        with pytest.raises(MessageNotFound):
            read("nowhere")
    assert fleet.quarantine.history("nowhere") == []


def test_a_history_has_its_last_entry_also_where_redis_had_to_wait_before_it_wrote_that(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    (entry,) = [entry for entry in fleet.quarantine.history(mid) if entry["event"] == "quarantined"]
    before = int(entry["at"].partition("-")[0]) - 300
    keeper.ledger.client.hset(keeper.ledger.keys.message(mid), "last_seen", before)
    assert entry in fleet.quarantine.history(mid)


def test_a_message_is_found_by_its_task_id_and_refused_where_that_is_ambiguous(
    fleet: Fleet, keeper: Keeper
) -> None:
    first = keeper.send_and_keep("fleet.healthy", 1, task_id="same")
    assert fleet.quarantine.get("same").mid == first
    second = keeper.send_and_keep("fleet.healthy", 2, task_id="same")
    with pytest.raises(AmbiguousId, match="may be any of 2 messages"):
        fleet.quarantine.get("same")
    error = refused(fleet.quarantine.discard(["same"]))
    assert first in error and second in error
    assert fleet.quarantine.discard([first])[0].done
    assert fleet.quarantine.get("same").mid == second
    assert fleet.quarantine.discard(["same"])[0].mid == second


def test_release_of_a_task_that_no_longer_exists_is_refused_unless_forced(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    fleet.app.tasks.pop("fleet.healthy")
    assert "no task 'fleet.healthy' is registered" in refused(fleet.quarantine.release([mid]))
    assert not keeper.raw_on_redis()
    assert fleet.quarantine.release([mid], force=True)[0].done
    assert len(keeper.raw_on_redis()) == 1


def test_release_knows_the_tasks_that_only_workers_have_loaded_so_far(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    healthy = fleet.app.tasks.pop("fleet.healthy")

    def load() -> None:
        fleet.app.tasks["fleet.healthy"] = healthy

    fleet.app.loader.import_default_modules = load
    assert fleet.quarantine.release([mid])[0].done


# --- a ledger that is not what it should be --------------------------------------------------------


@pytest.mark.parametrize("verb", ["release", "fail", "discard"])
def test_acts_on_the_ledger_of_another_app_are_refused(verb: str, fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    fleet.app.main = "another"
    with pytest.raises(SchemaMismatch, match="belongs to app 'fleet', not to 'another'"):
        getattr(fleet.quarantine, verb)([mid])
    fleet.app.main = "fleet"
    assert fleet.quarantine.get(mid).state == "NDLV"


@pytest.mark.parametrize("verb", ["release", "discard"])
def test_a_full_ledger_takes_what_makes_room_loses_nothing_and_still_can_be_read(
    verb: str, new_fleet: Build, new_server: Callable[..., RedisServer]
) -> None:
    server = new_server()
    fleet = new_fleet(server.url(), backend_url=server.url(1))
    keeper = Keeper(fleet.app)
    mid = keeper.send_and_keep("fleet.healthy", 1)
    server.client().config_set("maxmemory", "1")
    if verb == "discard":
        assert fleet.quarantine.discard([mid])[0].done and fleet.quarantine.purge([mid])[0].done
    else:
        with pytest.raises(LedgerUnavailable, match="memory"):
            getattr(fleet.quarantine, verb)([mid])
        assert [record.mid for record in fleet.quarantine.list()] == [mid]
        server.client().config_set("maxmemory", "0")
        assert getattr(fleet.quarantine, verb)([mid])[0].done
    server.client().config_set("maxmemory", "0")
    keeper.close()


def test_a_read_only_replica_is_named_as_such_and_can_be_read(
    fleet: Fleet, keeper: Keeper, new_fleet: Build, redis_server: RedisServer, new_server: Any
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    redis_server.client().config_set("repl-diskless-sync-delay", 0)
    replica = new_server(replicaof=f"127.0.0.1 {redis_server.port}", databases=10_000)
    wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up")
    database = int(fleet.broker_url.rpartition("/")[2])
    reader = new_fleet(fleet.broker_url, poison_redis_url=replica.url(database))
    wait_until(lambda: [record.mid for record in reader.quarantine.list()] == [mid])
    with pytest.raises(LedgerUnavailable, match="read-only replica"):
        reader.quarantine.discard([mid])


def test_outcomes_are_told_at_once_so_that_none_is_forgotten_when_the_ledger_goes_away(
    new_fleet: Build, new_server: Callable[..., RedisServer]
) -> None:
    server = new_server()
    fleet = new_fleet(server.url())
    keeper = Keeper(fleet.app)
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(3)]
    keeper.close()
    told: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        told.append(outcome)
        server.kill()

    with pytest.raises(LedgerUnavailable, match="not reachable"):
        fleet.quarantine.discard(mids, on_outcome=tell)
    assert [(outcome.mid, outcome.done) for outcome in told] == [(mids[0], True)]


# --- a broker that is not there --------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["away", "silent", "full"])
def test_a_broker_that_does_not_take_the_message_leaves_it_in_quarantine(
    fault: str,
    new_fleet: Build,
    new_server: Callable[..., RedisServer],
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(care, "RELEASED_AT_ONCE", 1)
    broker = new_server()
    options = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    fleet = new_fleet(broker.url(), poison_redis_url=redis_url, broker_transport_options=options)
    keeper = Keeper(fleet.app)
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(2)]
    keeper.close()
    break_it: dict[str, Callable[[], object]] = {
        "away": broker.kill,
        "silent": broker.pause,
        "full": lambda: broker.client().config_set("maxmemory", 1),
    }
    first, second = fleet.quarantine.release(mids, on_outcome=lambda outcome: break_it.pop(fault, bool)())
    assert first.done and not second.done
    assert "did not answer" in second.error if fault == "silent" else "did not take" in second.error
    assert fleet.quarantine.get(second.mid).state == "NDLV"
    assert fleet.quarantine.discard([second.mid])[0].done, "open to everybody again"


def test_MSG_4_a_queue_that_Redis_refuses_stops_no_other_of_the_same_release(
    fleet: Fleet, keeper: Keeper
) -> None:
    mids = [
        keeper.send_and_keep("fleet.healthy", n, queue=q) for n, q in enumerate(("celery", "odd", "celery"))
    ]
    keeper.ledger.client.set("odd", "no list")
    first, odd, last = fleet.quarantine.release(mids)
    assert first.done and last.done
    assert "did not take the message" in odd.error
    assert fleet.quarantine.get(odd.mid).state == "NDLV"
    assert [raw["headers"]["poison_mid"] for raw in keeper.raw_on_redis()] == [mids[0], mids[2]]


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_a_queue_that_no_longer_exists_on_RabbitMQ_is_named_and_the_next_message_still_goes(
    fleet: Fleet, keeper: Keeper
) -> None:
    lost = keeper.send_and_keep("fleet.healthy", 1, queue="gone")
    kept = keeper.send_and_keep("fleet.healthy", 2)
    with fleet.app.connection_for_write() as connection:
        connection.default_channel.queue_delete("gone")
    first, second = fleet.quarantine.release([lost, kept])
    assert "the broker knows no queue 'gone'" in first.error
    assert second.done
    assert keeper.take_from_rabbit().properties["application_headers"]["poison_mid"] == kept
