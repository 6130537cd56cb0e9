"""`celery poison gate show` and `lift` (NEW-1)."""

from __future__ import annotations

from typing import Any

import pytest

from celery_poison import signals
from celery_poison.desk.owner import default_actor
from celery_poison.ledger.fleet import GateLimits, Silence
from celery_poison.plugin import plugin_of
from tests.apps.factory import build_app
from tests.apps.harness import Fleet
from tests.cli.conftest import Console


@pytest.fixture
def closed(fleet: Fleet) -> None:
    ledger = plugin_of(fleet.app).open_ledger()
    led = ledger.fleet.lead("monitor", 60_000)
    assert led is not None
    for n in range(3):
        ledger.fleet.beat(f"w{n}/b", {"node": "n"}, first=True)
        ledger.client.hset(ledger.keys.worker(f"w{n}/b"), "since", 1)
    for n in range(3):
        ledger.fleet.declare_dead(f"w{n}/b", f"i{n}", Silence.SILENT, 0, led[0], GateLimits(0.5, 3, 60_000))


def test_a_gate_that_was_never_closed_is_open_and_cannot_be_lifted(console: Console) -> None:
    assert console.out("gate", "show") == "open\n"
    assert "gate" not in console.out("status"), "nothing to say"
    assert console.json("gate", "show")["closed"] is False
    assert "the fleet gate is not closed" in console.run("gate", "lift", status=1).stderr


@pytest.mark.usefixtures("closed")
def test_NEW_1_a_closed_gate_is_shown_loudly_and_lifted_by_hand(console: Console, fleet: Fleet) -> None:
    lifted: list[dict[str, Any]] = []
    hear = lambda sender=None, signal=None, **told: lifted.append(told)  # noqa: E731 - held by this name
    signals.fleet_gate_lifted.connect(hear)
    shown = console.json("gate", "show")
    assert (shown["closed"], shown["deaths"], shown["fleet"]) == (True, 3, 3)
    assert console.json("status")["gate"] == shown
    status = console.out("status")
    assert "gate        CLOSED since " in status
    assert "WARNING  the fleet gate is closed: 3 of 3 workers died" in status
    assert "lifted" in console.out("gate", "lift", "--note", "a node failed")
    assert lifted == [{"actor": default_actor(), "note": "a node failed"}]
    told = console.out("gate", "show")
    assert told.startswith("open; lifted ") and told.endswith(f"by {default_actor()}\n")
    assert "fleet gate" not in "".join(console.json("status")["warnings"])
    tail = console.out("journal", "tail")
    assert "the fleet gate closed: 3 of 3 workers died; only a death on trial convicts" in tail
    assert f"the fleet gate was lifted by {default_actor()}: a node failed" in tail


@pytest.mark.usefixtures("closed")
def test_a_program_can_lift_it_too(console: Console) -> None:
    told = console.json("gate", "lift", "--actor", "robot")
    assert (told["closed"], told["lifted_by"]) == (False, "robot")


def test_without_redis_the_exit_status_is_3(fleet: Fleet) -> None:
    app = build_app(fleet.environ() | {"POISON_REDIS_URL": "redis://127.0.0.1:1/0"})
    for verb in ("show", "lift"):
        told = Console(app).run("gate", verb, status=3).stderr
        assert "Redis is not reachable" in told
        assert "; meanwhile workers go on, tasks run unguarded; next: celery " in told
