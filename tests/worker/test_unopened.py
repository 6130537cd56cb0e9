"""What kills whoever opens it is kept after two deaths, whichever task it names, or none (NEW-5, SAP-6)."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from tests import PATIENCE, sampled
from tests.apps.tasks import KillsItsReader
from tests.worker.apps import KILLS
from tests.worker.conftest import Crew

CALL = json.dumps([[1], {}, {}]).encode()
OLD = {"task": "fleet.counted", "id": "bomb", "args": [KillsItsReader()], "kwargs": {}}
#: shape -> headers, body, content type. In each the main process opens it, before any task's own code runs.
BOMBS: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "of an unguarded task": (
        {"id": "bomb", "task": "fleet.told", "compression": KILLS},
        CALL,
        "application/json",
    ),
    "of Celery's own task": (
        {"id": "bomb", "task": "celery.backend_cleanup", "compression": KILLS},
        CALL,
        "application/json",
    ),
    "of protocol 1": ({}, pickle.dumps(OLD), "application/x-python-serialize"),
    "of no task": ({"compression": KILLS}, b"{}", "application/json"),
    "of a task that nobody knows": (
        {"id": "bomb", "task": "no.such", "compression": KILLS},
        CALL,
        "application/json",
    ),
}
ALWAYS = [("of an unguarded task", "redis"), ("of protocol 1", "rabbitmq"), ("of no task", "redis")]
OTHERS = [(s, b) for s in BOMBS for b in ("redis", "rabbitmq") if (s, b) not in ALWAYS]


@pytest.mark.parametrize(("shape", "broker_url"), sampled(ALWAYS, OTHERS), indirect=["broker_url"])
def test_NEW_5_what_kills_who_opens_it_is_kept_after_two_deaths(
    crew: Crew, shape: str, broker_url: str
) -> None:
    headers, body, content_type = BOMBS[shape]
    with crew.app.connection_for_write() as connection:
        crew.app.amqp.Producer(connection).publish(
            body,
            routing_key="celery",
            content_type=content_type,
            content_encoding="binary" if "pickle" in content_type else "utf-8",
            headers=headers,
            declare=[crew.app.amqp.queues["celery"]],
        )
    with crew.supervise(1, give_up_after=6) as fleet:
        crew.await_that(lambda: crew.quarantine.list() or fleet.gave_up, "in quarantine")
        assert not fleet.gave_up, f"{len(fleet.deaths)} deaths, and no verdict"
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        crew.send("told", 7, compression="gzip")
        crew.await_that(lambda: 7 in crew.marks.count("told", "start"), "what can be opened runs")
        assert len(fleet.deaths) == 2
    (kept,) = crew.quarantine.list()
    assert (kept.cause, kept.crashes) == ("receive", 2)
    assert crew.quarantine.message(kept.mid).body == body
