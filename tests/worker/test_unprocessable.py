"""What never reaches a task is kept as it came, and replayed after the deploy that fixes it (NEW-5)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from celery.exceptions import NotRegistered

from celery_poison import Quarantine
from celery_poison.broker.kinds import depth
from celery_poison.desk.survey import overview
from celery_poison.errors import LedgerUnavailable
from celery_poison.model import MessageRecord
from tests import PATIENCE, sampled
from tests.worker.apps import register_new
from tests.worker.conftest import Crew
from tests.worker.receiving import Site

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)

JSON = "application/json"
PICKLE = "application/x-python-serialize"
CALL = b'[[1], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


class Bomb:
    """Whoever unpickles it fails the test."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import os; os.kill(os.getpid(), 9)",)


#: task id -> (cause, body, content type, headers beside the id).
GARBAGE: dict[str, tuple[str, bytes, str, dict[str, Any]]] = {
    "broken-json": ("undecodable", b"[[1], {", JSON, {"task": "fleet.healthy"}),
    "broken-pickle": ("undecodable", b"\x80\x04garbage", PICKLE, {"task": "fleet.told"}),
    "not-accepted": ("undecodable", b"args: []", "application/x-yaml", {"task": "fleet.told"}),
    "not-zlib": (
        "undecodable",
        b"no zlib",
        JSON,
        {"task": "fleet.told", "compression": "application/x-gzip"},
    ),
    "no-call": ("malformed", b"[1, 2]", JSON, {"task": "fleet.told"}),
    "kwargs": ("malformed", b"[[1], 5, {}]", JSON, {"task": "fleet.healthy"}),
    "kwargs-plain": ("malformed", b'[[1], ["x"], {}]', JSON, {"task": "fleet.told"}),
    "no-kwargs": ("malformed", b"[[1], null, {}]", JSON, {"task": "fleet.told"}),
    "options": ("malformed", b"[[1], {}, 5]", JSON, {"task": "fleet.healthy"}),
    "no-name": ("malformed", CALL, JSON, {"task": ["fleet.told"]}),
    "no-time": ("malformed", CALL, JSON, {"task": "fleet.told", "eta": "tomorrow"}),
    "never": ("malformed", CALL, JSON, {"task": "fleet.told", "eta": "9999-12-31T23:59:59-10:00"}),
    "pickled": ("unknown_task", pickle.dumps(Bomb()), PICKLE, {"task": "fleet.nowhere"}),
}
#: Messages without any id: (cause, body, content type, headers).
STRANGERS = [
    ("not_a_task", b'{"hello": "world"}', JSON, {}),
    ("undecodable", b"plain text", "text/plain", {}),
    ("malformed", CALL, JSON, {"task": "fleet.told"}),
    ("unknown_task", CALL, JSON, {"task": "fleet.nobody"}),
]
#: What kombu cannot read, in a queue on Redis.
ITEMS = [
    b"not json",
    b"\xff\xfe",
    b"5",
    b'{"body": 5, "properties": {}}',
    b'{"headers": ["x"], "properties": {}}',
]


def _send_garbage(crew: Crew) -> int:
    """Send all kinds of it, healthy tasks among them; return how many are garbage."""
    crew.send("healthy", 0)  # RabbitMQ has the queue from now on
    with crew.app.connection_for_write() as connection:
        producer = crew.app.amqp.Producer(connection)

        def publish(body: bytes, content_type: str, headers: dict[str, Any]) -> None:
            options = {"content_type": content_type, "content_encoding": "utf-8", "headers": headers}
            producer.publish(body, routing_key="celery", **options)

        for id, (_, body, content_type, headers) in GARBAGE.items():
            publish(body, content_type, {"id": id, **headers})
            crew.send("healthy", 1)
        for _, body, content_type, headers in STRANGERS:
            publish(body, content_type, headers)
        crew.app.send_task("fleet.new_guarded", (7,), task_id="new-guarded")
        crew.app.send_task("fleet.new_plain", (8,), task_id="new-plain")
        items = ITEMS if connection.transport.driver_type == "redis" else []
        for item in items:
            connection.default_channel.client.lpush("celery", item)
    crew.send("healthy", 2)
    return len(GARBAGE) + len(STRANGERS) + 2 + len(items)


def _kept(crew: Crew) -> dict[str, MessageRecord]:
    return {record.id: record for record in crew.quarantine.list()}


@BOTH
def test_NEW_5_nothing_vanishes_that_no_task_can_take_and_a_deploy_replays_it(crew: Crew) -> None:
    count = _send_garbage(crew)
    with crew.worker(concurrency=2) as worker:
        crew.await_that(lambda: len(_kept(crew)) == count, "not all of it is kept")
        crew.await_that(lambda: crew.done() == 3, "the healthy ones do not run")
        assert worker.is_alive() and "Connection to broker lost" not in crew.log_text()
        assert [_kept(crew)[id].arguments for id in ("new-plain", "pickled")] == ['"(hidden)"', ""]
        unknown = crew.app.AsyncResult("new-plain")
        with pytest.raises(NotRegistered):  # as plain Celery tells it
            unknown.get(timeout=PATIENCE)
        with pytest.raises(OverflowError):
            crew.app.AsyncResult("never").get(timeout=PATIENCE)
    kept = _kept(crew)
    assert {id: kept[id].cause for id in GARBAGE} == {id: row[0] for id, row in GARBAGE.items()}
    for id, (_, body, content_type, headers) in GARBAGE.items():
        stored = crew.quarantine.message(kept[id].mid)
        assert (stored.body, stored.content_type) == (body, content_type), id
        assert {"id": id, **headers}.items() <= stored.headers.items(), id
    strangers = [record for id, record in kept.items() if id.startswith("raw-")]
    bodies = {crew.quarantine.message(record.mid).body: record.cause for record in strangers}
    assert bodies.items() >= {body: cause for cause, body, _, headers in STRANGERS if not headers}.items()
    assert len(strangers) == count - len(GARBAGE) - 2
    if crew.broker_url.startswith("redis"):
        assert {bodies[item] for item in ITEMS} == {"not_a_task"}
    assert sum(group.count for group in crew.quarantine.groups()) == count
    for record in kept.values():  # whatever is in it
        assert crew.quarantine.detail(record.mid).record == record
        json.dumps(record.as_dict())
    assert not crew.events("crashed") and crew.nothing_runs()
    _release_after_a_deploy(crew)


def _release_after_a_deploy(crew: Crew) -> None:
    new = ["new-guarded", "new-plain"]
    assert not any(outcome.done for outcome in crew.quarantine.release(new)), "nobody knows these tasks yet"
    register_new(crew.app)
    with crew.worker("w2", env={"NEW_RELEASE": "1"}) as worker:
        # One that is still garbage comes back.
        outcomes = crew.quarantine.release([*new, "broken-json"], actor="ann")
        assert [outcome.error for outcome in outcomes] == [""] * 3
        for id, n in zip(new, (7, 8), strict=True):
            crew.await_that(lambda n=n, id=id: crew.app.AsyncResult(id).result == n, f"{id} does not run")
        crew.await_that(lambda: "broken-json" in _kept(crew), "it vanished")
        crew.await_that(crew.nothing_runs, "the ledger has not forgotten them")
        assert worker.is_alive()
    assert not {*new} & _kept(crew).keys() and not crew.quarantine.list(candidates=True)
    assert crew.marks.count("new_guarded", "start") == {7: 1} and crew.marks.count("new_plain", "start") == {
        8: 1
    }
    told = [entry["event"] for entry in crew.events() if entry["id"] == "broken-json"]
    assert told == ["quarantined", "released", "quarantined"]


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_5_a_worker_that_is_killed_while_it_keeps_them_loses_none(crew: Crew) -> None:
    ids = [crew.app.send_task("fleet.nowhere", (n,)).id for n in range(300)]
    with crew.worker() as worker:
        crew.await_that(lambda: len(_kept(crew)) >= 20, "nothing is kept")
        worker.kill_main()
    with crew.worker("w2"):
        crew.await_that(lambda: len(_kept(crew)) >= 300, "some are lost")
        with crew.app.connection_for_read() as connection:
            crew.await_that(lambda: not depth(connection, "celery"), "not received")
            if crew.broker_url.startswith("redis"):
                client = connection.default_channel.client
                crew.await_that(lambda: not client.hlen("unacked"), "not acknowledged")
    assert sorted(record.id for record in crew.quarantine.list()) == sorted(ids)
    assert len(crew.events("quarantined")) == 300


def test_NEW_5_a_full_quarantine_takes_no_more_of_them(new_crew: Callable[..., Crew], redis_url: str) -> None:
    crew = new_crew(redis_url, poison_keep_unprocessable=2)
    for n in range(5):
        crew.app.send_task("fleet.nowhere", (n,))
    last = crew.send("healthy", 1)
    with crew.worker():
        assert last.get(timeout=PATIENCE) == 1
        crew.await_that(
            lambda: crew.log_text().count("Received unregistered task") == 5, "Celery is not asked"
        )
    assert len(_kept(crew)) == 2
    assert "quarantine is full: see poison_max_messages, poison_keep_unprocessable" in crew.log_text()
    assert not overview(crew.app).ledger_errors, "that is no fault of the ledger's"


def test_NEW_5_a_reason_tells_nothing_of_the_body_or_the_headers(crew: Crew) -> None:
    """Reasons stand in the journal and in lists, where poison_redact hides nothing."""
    bodies = [
        ("told", b'[[1], ["hunter2"], {}]', {}),
        ("told", b'[[1], {}, "hunter2"]', {}),
        ("told", b'["hunter2"]', {}),
        ("told", b'[[1], {"password": "hunter2}, {}]', {}),
        ("told", CALL, {"eta": "hunter2"}),
        ("told", CALL, {"timelimit": ["hunter2", None]}),
        ("told", CALL, {"shadow": ["hunter2"]}),
    ]
    with crew.app.connection_for_write() as connection:
        producer = crew.app.amqp.Producer(connection)
        for number, (task, body, headers) in enumerate(bodies):
            more = {"task": f"fleet.{task}", "id": str(number), **headers}
            words = {"content_type": JSON, "content_encoding": "utf-8", "headers": more}
            producer.publish(body, routing_key="celery", **words)
    with crew.worker(pool="solo"):
        crew.await_that(lambda: len(_kept(crew)) == len(bodies), "all of it is kept")
    assert "hunter2" not in json.dumps([record.reason for record in crew.quarantine.list()])
    assert "hunter2" not in json.dumps(crew.events())


# --- without a worker ------------------------------------------------------------------------------


@pytest.fixture
def new_site(redis_url: str) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def build(**given: Any) -> Site:
        made.append(Site(redis_url, **given))
        return made[-1]

    yield build
    for site in made:
        site.close()


UNKNOWN = b'{"properties": {}, "headers": {"task": "fuzz.nowhere", "id": "i"}, "body": "[[], {}, null]"}'


def test_NEW_5_observing_keeps_nothing_and_tells_what_it_would_keep(new_site: Callable[..., Site]) -> None:
    site = new_site(observe_only=True)
    assert site.receive(UNKNOWN).acknowledged
    quarantine = Quarantine(site.app)
    assert not quarantine.list() and site.app.AsyncResult("i").failed()
    assert quarantine.queries.would_quarantine() == {"unknown_task": 1}


def test_NEW_5_observing_an_impossible_eta_is_told_to_its_caller_and_dropped(
    new_site: Callable[..., Site],
) -> None:
    site = new_site(observe_only=True)
    eta = b'"eta": "9999-12-31T23:59:59-10:00", "task": "fuzz.task"'
    assert site.receive(UNKNOWN.replace(b'"task": "fuzz.nowhere"', eta)).acknowledged
    assert isinstance(site.app.AsyncResult("i").result, OverflowError) and not Quarantine(site.app).list()


def test_NEW_5_what_is_kept_and_nobody_heard_of_it_is_kept_once(
    new_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = new_site()
    keep, answers = site.ledger.quarantine.store, iter([LedgerUnavailable("the answer is lost"), None])

    def loses_the_first_answer(*args: Any, **more: Any) -> bool:
        new = keep(*args, **more)
        if error := next(answers, None):
            raise error
        return new

    monkeypatch.setattr(site.ledger.quarantine, "store", loses_the_first_answer)
    assert site.receive(UNKNOWN).acknowledged
    assert len(Quarantine(site.app).list()) == 1


def test_NEW_29_a_fault_while_a_message_is_postponed_does_not_cost_it(new_site: Callable[..., Site]) -> None:
    site = new_site()
    site.unprocessable.postpone = Mock(side_effect=ValueError("not a header"))
    assert site.receive(UNKNOWN).acknowledged
    assert [record.cause for record in Quarantine(site.app).list()] == ["unknown_task"]
    assert [str(problem) for problem in site.problems] == ["not a header"]


def test_NEW_5_what_admission_refuses_is_kept_as_malformed(new_site: Callable[..., Site]) -> None:
    site = new_site()
    known = UNKNOWN.replace(b"nowhere", b"task")
    message = site.receive(known.replace(b'{"prop', b'{"content-type": "application/json", "prop', 1))
    assert site.requested and not Quarantine(site.app).list()
    site.unprocessable.refuse(message, ValueError("no notes"))
    (kept,) = Quarantine(site.app).list()
    assert (kept.id, kept.cause) == ("i", "malformed")
    assert kept.reason.endswith("ValueError"), "its text may quote the message"


def test_NEW_5_switched_off_it_leaves_celery_alone(new_site: Callable[..., Site]) -> None:
    site = new_site(keep_unprocessable=0)
    assert site.receive(UNKNOWN).acknowledged and not Quarantine(site.app).list()
    with pytest.raises(KeyError):
        site.receive(UNKNOWN.replace(b"nowhere", b"task").replace(b'"id"', b'"no"'))


def test_NEW_5_a_hook_of_ours_that_fails_leaves_it_to_celery(
    new_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = new_site()
    error = ZeroDivisionError("a bug of ours")
    monkeypatch.setattr(site.writer, "keep", Mock(side_effect=error))
    assert site.receive(UNKNOWN).acknowledged
    assert site.problems == [error] and site.app.AsyncResult("i").failed()


@pytest.mark.parametrize("headers", [b"{}", b'{"id": "i", "task": "fuzz.nowhere"}'])
def test_NEW_5_equal_messages_are_kept_each_for_itself_and_a_copy_is_recognised(
    new_site: Callable[..., Site], headers: bytes
) -> None:
    site = new_site()
    sent = b'{"properties": {"delivery_info": {}}, "headers": %s, "body": "{}", "content-type": "text/json"}'
    for _ in range(3):
        site.receive(sent % headers)
    site.receive(sent.replace(b'_info": {}', b'_info": {"redelivered": true}') % headers)
    assert len(Quarantine(site.app).list()) == 3


@pytest.mark.parametrize(
    "compression",
    ["gzip", "application/x-bz2", "application/x-lzma", "nothing known", ["gzip"], {"gzip": 1}, 30, True],
)
def test_NEW_5_a_body_that_cannot_be_unpacked_is_no_lost_connection(
    new_site: Callable[..., Site], compression: Any
) -> None:
    site = new_site()
    headers = {"id": "i", "task": "fuzz.task", "compression": compression}
    site.receive(json.dumps({"body": "[]", "headers": headers, "properties": {}}).encode())
    (kept,) = Quarantine(site.app).list()
    assert kept.cause == "undecodable" and str(compression) in kept.reason


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_9_a_number_of_an_outbox_that_there_is_not_blocks_nothing(crew: Crew) -> None:
    for number in (True, -1, 0, 7, 2**70, "7"):
        crew.app.send_task(f"fleet.nowhere{number}", headers={"poison_outbox": number})
    with crew.worker(pool="solo"):
        crew.await_that(lambda: len(crew.quarantine.list()) == 6, "kept")
    assert not crew.events("send_failed", "queue_blocked")
    seen = overview(crew.app)
    assert seen.panel("outbox") == [] and not any("blocked" in told for told in seen.verdict)


@pytest.mark.parametrize("name", ["fleet.told", "fleet.healthy"])
def test_NEW_5_a_mapping_of_three_is_a_call_as_celery_takes_it(crew: Crew, name: str) -> None:
    """Headers of protocol 2 and a body of protocol 1."""
    body = json.dumps({"args": [1], "kwargs": {}, "retries": 0}).encode()
    with crew.app.connection_for_write() as connection:
        crew.app.amqp.Producer(connection).publish(
            body,
            routing_key="celery",
            content_type=JSON,
            content_encoding="utf-8",
            headers={"id": "both", "task": name},
            declare=[crew.app.amqp.queues["celery"]],
        )
    with crew.worker():
        crew.await_that(lambda: crew.starts(name.partition(".")[2]) or crew.quarantine.list(), "it runs")
        assert not crew.quarantine.list()
