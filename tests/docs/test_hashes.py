"""docs/keys.md names the fields of every hash: held against what the transitions really write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from kombu.message import Message

from celery_poison.extensions.rollout import task_names
from celery_poison.headers import EDITED
from celery_poison.keep.stored_message import stored_fields
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.fleet import Silence
from celery_poison.model import Guilt, Start
from celery_poison.rules.destinations import Route
from celery_poison.rules.failures import KeptFailure
from celery_poison.states import Event
from celery_poison.worker.heartbeat import WorkerFacts
from tests.docs.pages import rows, section, text, words

ID, MID, WORKER, INCIDENT = "id", "mid", "w1@host/0a1b", "incident"


def _documented(key: str) -> set[str]:
    told = {words(row[0])[0]: words(row[1]) for row in rows(section(text("keys.md"), "The hashes"))}
    return set(told[key])


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with redis.Redis.from_url(redis_url) as client:
        yield Ledger(client, Keys("ns", "NAME"))


def _fields_of(ledger: Ledger, key: str) -> set[str]:
    found: Any = ledger.client.hkeys(key)
    return {name.decode() for name in found}


def _start(number: int) -> Start:
    return Start("R", f"0a1b.{number}", WORKER, 7, 1, 1, 0, ID, "shop.charge", "celery", 2, 5, 10, 1)


def _message(**options: Any) -> dict[str, str | bytes | int]:
    message: Any = Message(body=b"[[], {}, {}]", headers={"id": ID, EDITED: "another mid"}, **options)
    message._decoded_cache = [[], {}, {"chord": None}]
    return stored_fields(message)


def test_the_fields_of_a_lineage_are_told(ledger: Ledger) -> None:
    key, written = ledger.keys.lineage(ID), set[str]()
    for number, end in enumerate(
        (
            _crash,
            _crash_among_many,
            _interrupt_its_trial,
            _ignore,
            _roll_back,
            _quarantine_and_release,
            _quarantine_and_release_as_scheduled,
            _quarantine_and_release_with_its_counts,
        )
    ):
        end(ledger, _start(number))
        written |= _fields_of(ledger, key)
    assert written == _documented("lineage:ID")


def _ignore(ledger: Ledger, start: Start) -> None:
    ledger.messages.acquit(MID, start, Guilt.UNPROVEN)


def _crash(ledger: Ledger, start: Start) -> None:
    ledger.messages.crash(MID, start, cause="signal:9", shared=True, incident=INCIDENT)


def _crash_among_many(ledger: Ledger, start: Start) -> None:
    ledger.client.hset(ledger.keys.gate, "until", 10**14)
    led = ledger.fleet.lead("monitor", 60_000)
    assert led is not None
    ledger.messages.claim(MID, b"", start)
    ledger.messages.crash(MID, start, cause="worker_lost", shared=True, fence=led[0])


def _interrupt_its_trial(ledger: Ledger, start: Start) -> None:
    ledger.messages.claim(MID, b"", start)
    ledger.messages.interrupt(MID, start, cause="worker_lost", doubt=500, spoilt=True)


def _roll_back(ledger: Ledger, start: Start) -> None:
    ledger.messages.rollback(MID, start, cause="rejected")
    ledger.quarantine.observe(MID, start, cause="signal:9", reason="")


def _quarantine_and_release(ledger: Ledger, start: Start) -> None:
    ledger.quarantine.store(MID, start, cause="signal:9", reason="", fields=_message())
    ledger.decisions.complete_release(MID, ID, ledger.decisions.decide(MID, "release", "ann"), "ann", "")


def _quarantine_and_release_as_scheduled(ledger: Ledger, start: Start) -> None:
    ledger.quarantine.store(MID, start, cause="signal:9", reason="", fields=_message())
    ledger.decisions.schedule(MID, 60, 2, "ann", "")
    ledger.decisions.complete_release(MID, ID, ledger.decisions.decide(MID, "again", "ann"), "ann", "")


def _quarantine_and_release_with_its_counts(ledger: Ledger, start: Start) -> None:
    ledger.quarantine.store(MID, start, cause="signal:9", reason="", fields=_message())
    ledger.decisions.complete_release(MID, ID, ledger.decisions.decide(MID, "keep", "ann"), "ann", "")


def test_the_fields_of_a_message_are_told(ledger: Ledger) -> None:
    key = ledger.keys.message(MID)
    given = {"failure": KeptFailure().encode(), "unprocessable": "b.1", "not_rerun": "1", "told": "1"}
    fields = {**_message(content_type="application/x-python-serialize"), **given}
    ledger.quarantine.store(MID, _start(1), cause="signal:9", reason="", fields=fields)
    written = _fields_of(ledger, key)
    ledger.decisions.decide(MID, "release", "ann")
    written |= _fields_of(ledger, key)
    for other, goes in ((f"{MID}-2", Route("dead.letters")), (f"{MID}-3", Route(retry_ms=0))):
        ledger.quarantine.store(other, _start(1), cause="signal:9", reason="", fields=fields, route=goes)
        written |= _fields_of(ledger, ledger.keys.message(other))
    ledger.decisions.complete_send(f"{MID}-2", ledger.decisions.decide(f"{MID}-2", "send", "ann"), "ann", "")
    written |= _fields_of(ledger, ledger.keys.message(f"{MID}-2"))
    ledger.decisions.schedule(f"{MID}-3", 60, 2, "ann", "")
    written |= _fields_of(ledger, ledger.keys.message(f"{MID}-3"))
    ledger.decisions.give_up(MID, Event.FAILED, "ann", "")
    written |= _fields_of(ledger, key)
    ledger.decisions.restore(MID, "ann", "", force=True)
    number = ledger.decisions.decide(MID, "edit", "ann")
    ledger.decisions.edit(MID, "copy", {"body": b""}, actor="ann", note="", number=number)
    written |= _fields_of(ledger, key)
    assert written == _documented("message:MID")


def test_the_fields_of_an_incident_are_told(ledger: Ledger) -> None:
    ledger.fleet.beat(WORKER, {"node": "w1@host"}, first=True)
    led = ledger.fleet.lead("other", 1000)
    assert led is not None
    ledger.fleet.declare_dead(WORKER, INCIDENT, Silence.SILENT, 0, led[0])
    ledger.fleet.close_incident(WORKER, INCIDENT, flagged=0, put_back=0, returned={}, fence=led[0])
    assert _fields_of(ledger, ledger.keys.incident(INCIDENT)) == _documented("incident:IID")


def test_the_fields_of_a_worker_are_told() -> None:
    written = set(re.findall(r'"(\w+)":', inspect.getsource(WorkerFacts.__init__)))
    written |= set(re.findall(r'"(\w+)":', inspect.getsource(WorkerFacts.now)))
    written |= {"since", "forgotten_at", "troubles", "troubled_at", "kept"}  # by the script
    written |= {task_names.FIELD}  # facts of extensions
    assert written == _documented("worker:INC")
