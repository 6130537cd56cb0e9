"""Half surrogates and endless ids: what is no UTF-8, or too long, holds nothing up and fills nothing."""

from __future__ import annotations

from typing import Any

import pytest

from celery_poison.headers import LONGEST, known_as
from celery_poison.plugin import plugin_of
from tests import PATIENCE
from tests.worker.conftest import Crew
from tests.worker.envelopes import Envelope
from tests.worker.test_hostile_envelopes import is_drained, push

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
#: What ``os.listdir`` gives for a file whose name is no UTF-8.
NAME = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
CALL = b'[[%d], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


@BOTH
@pytest.mark.parametrize("how", ["quarantine", "rollback", "discard", "raises"])
def test_what_a_task_says_of_a_file_that_is_not_utf_8_is_on_record(crew: Crew, how: str) -> None:
    for _ in range(9):  # more than are prefetched
        crew.send("says", how, f"bad file {NAME}")
    healthy = crew.send("healthy", 1)
    with crew.worker():
        assert healthy.get(timeout=PATIENCE) == 1
        crew.await_that(lambda: is_drained(crew), "some are not acknowledged")
        crew.await_that(crew.nothing_runs, "some starts stay on record")
        told = [entry["note"] for entry in crew.events("quarantined", "finished")]
        if how == "quarantine":
            assert {record.reason for record in crew.quarantine.list()} == {"bad file caf\\udce9.txt"}
            assert len(crew.quarantine.list()) == 9
        elif how == "discard":
            assert told.count("bad file caf\\udce9.txt") == 9
        else:
            assert not crew.quarantine.list()


def _strange(number: int, id: Any) -> Envelope:
    headers = {"task": "fleet.counted", "id": id, "retries": 0, "argsrepr": "", "lang": "py"}
    return Envelope("strange", number, CALL % number, headers)


def test_ids_that_cannot_be_written_hold_no_other_start_on_record(crew: Crew) -> None:
    with crew.worker():
        with crew.app.connection_for_write() as connection:
            for number, id in enumerate(["a\udcff", "b\udcff", NAME] * 5):
                push(connection, _strange(number, id))
        for number in range(30):
            crew.send("healthy", number)
        crew.await_that(lambda: crew.done() == 30, "the healthy ones do not run")
        crew.await_that(lambda: is_drained(crew), "some are not acknowledged")
        crew.await_that(crew.nothing_runs, "some starts stay on record")
    ledger = plugin_of(crew.app).open_ledger()
    assert not ledger.client.hlen(ledger.keys.done) and not ledger.client.zcard(ledger.keys.leases)


@pytest.mark.parametrize("id", ["x" * 1_000_000, "\udcff" * 100_000])
def test_an_endless_id_leaves_little_behind(crew: Crew, id: str) -> None:
    with crew.worker():
        with crew.app.connection_for_write() as connection:
            for number in range(5):
                push(connection, _strange(number, id + str(number)))
        crew.await_that(lambda: len(crew.marks.all("counted")) == 5, "they do not run")
        crew.await_that(lambda: is_drained(crew), "some are not acknowledged")
        crew.await_that(crew.nothing_runs, "some starts stay on record")
    entries = crew.events("finished")
    assert len(entries) == 5
    assert max(len(value) for entry in entries for value in entry.values()) <= LONGEST
    assert len({entry["id"] for entry in entries}) == len({entry["mid"] for entry in entries}) == 5


def test_an_id_is_what_it_is_unless_it_cannot_be_written_or_is_too_long() -> None:
    assert known_as("9bc4-é") == "9bc4-é" and known_as(7) == "7"
    assert known_as("a\udcff") == "a\\udcff" == known_as(known_as("a\udcff"))
    assert len(known_as("x" * 1000)) == LONGEST == len(known_as("é" * 1000))
    assert known_as("x" * 1000) != known_as("x" * 1001)
