"""`ready` and `status` about workers of which only the heartbeat is there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from kombu import Queue

from celery_poison.errors import LedgerUnavailable
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper

WORKER, NODE, HOST = "w1@h/b", "w1@h", socket.gethostname()


#: So that nobody is silent on a busy machine.
PATIENT = {"poison_activation_interval": 60}


@pytest.fixture
def fleet(new_fleet: Callable[..., Fleet], redis_url: str) -> Fleet:
    return new_fleet(redis_url, **PATIENT)


@contextmanager
def _beating(keeper: Keeper, quiet_ms: int | str | None = 90_000, **more: str | int) -> Iterator[None]:
    """Beat for a worker that consumes, by its own account, the queue of the fleet."""
    fields = {"node": NODE, "host": HOST, "queues": "celery", **more}
    fields |= {} if quiet_ms is None else {"quiet_ms": quiet_ms}
    keeper.ledger.fleet.beat(WORKER, fields, first=True)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            with suppress(LedgerUnavailable):  # on a busy machine an answer may come late
                keeper.ledger.fleet.beat(WORKER, fields)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_quiet_worker_for_which_messages_wait_is_deaf(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    fleet.send("healthy", 1)
    with _beating(keeper):
        seen = console.json("status")
        (row,) = seen["deaf"]
        assert (row["worker"], row["waiting"]) == (WORKER, {"celery": 1})
        assert 89 < row["age"] < 91 and 0 < seen["at"] - row["since"] - row["age"] < 10
        assert seen["level"] == "broken" and any("cure: restart it" in fault for fault in seen["faults"])
        told = console.json("ready", status=1)
        assert (told["ready"], told["workers"]) == (False, [NODE])
        assert f"worker {WORKER} lives and has consumed nothing since" in told["reasons"][0]
        assert console.run("ready", NODE, status=1).stderr.startswith("celery poison: not ready: worker")


@pytest.mark.parametrize(
    "quiet_ms", [50_000, "", None], ids=["heard lately", "does not know", "older version"]
)
def test_a_worker_that_is_not_known_to_be_quiet_is_ready(
    console: Console, keeper: Keeper, fleet: Fleet, quiet_ms: int | str | None
) -> None:
    fleet.send("healthy", 1)
    with _beating(keeper, quiet_ms):
        assert console.json("status")["deaf"] == []
        assert console.out("ready") == f"ready: {NODE}\n"


def test_a_quiet_worker_is_ready_while_nothing_waits_or_the_queue_is_for_one_of_its_consumers(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    with _beating(keeper):
        assert console.out("ready") == f"ready: {NODE}\n"
        fleet.send("healthy", 1)
        queue = Queue("celery", queue_arguments={"x-single-active-consumer": True})
        fleet.app.amqp.queues["celery"] = queue
        assert console.out("ready") == f"ready: {NODE}\n"


def test_a_worker_that_is_leaving_or_silent_is_not_ready_and_its_newest_life_counts(
    console: Console, keeper: Keeper
) -> None:
    keeper.ledger.fleet.beat(
        "w1@h/a", {"node": NODE, "host": HOST, "queues": "celery", "started_at": 1}, first=True
    )
    keeper.ledger.client.zadd(keeper.ledger.keys.leases, {"w1@h/a": 1000})
    assert "w1@h/a has been silent since 1970" in console.run("ready", status=1).stderr
    with _beating(keeper, started_at=2):
        assert console.out("ready") == f"ready: {NODE}\n"
    with _beating(keeper, started_at=2, stopping=1):
        assert f"worker {WORKER} is leaving" in console.run("ready", status=1).stderr


def test_a_probe_without_a_worker_to_ask_about_says_so(console: Console) -> None:
    assert f"no worker of host {HOST} has reported" in console.run("ready", status=1).stderr
    assert "no worker of w9@test has reported" in console.run("ready", "w9@test", status=1).stderr


def test_whether_a_quiet_worker_consumes_is_not_made_up_where_the_broker_is_away(
    new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    fleet = new_fleet("amqp://guest:secret@127.0.0.1:1//", poison_redis_url=redis_url, **PATIENT)
    console, keeper = Console(fleet.app), Keeper(fleet.app)
    keeper.sign()
    with _beating(keeper):
        told = console.run("ready", status=1).stderr
        assert (
            f"the broker cannot be read (ConnectionRefusedError): whether {WORKER} consumes is not known"
            in told
        )
        assert "secret" not in told
        seen = console.json("status")
        assert seen["deaf"] == [] and any("is not known" in warning for warning in seen["warnings"])
    keeper.close()


def test_NEW_14_of_a_fleet_that_was_stopped_it_is_said_when_its_last_worker_ended(
    console: Console, keeper: Keeper
) -> None:
    keeper.sign()
    with _beating(keeper):
        pass
    keeper.ledger.fleet.retire(WORKER)
    for told in (
        console.run("ready", NODE, status=1).stderr,
        console.run("workers").stderr,
        console.out("status"),
    ):
        assert "the last one ended: w1@h at 20" in " ".join(told.split()), told
        assert "reported" not in told
