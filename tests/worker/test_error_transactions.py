"""Who hears of what, that nothing loops, and that a dead worker's messages are told of (TP1-3)."""

from __future__ import annotations

from typing import Any

from tests.worker.conftest import Crew

ALL = {f"poison_on_{kind}": "fleet.alarm" for kind in ("rollback", "quarantine", "discard")}


def _alarms(crew: Crew) -> set[tuple[str, str, str]]:
    """Kind, cause and first argument of what was told."""
    told: list[Any] = [mark.n for mark in crew.marks.all("alarm", "start")]
    return {(each["kind"], each["cause"], str((each["input"]["args"] or [""])[-1])) for each in told}


def test_TP1_3_every_end_without_success_is_told_once_and_nothing_loops(
    new_crew: Any, broker_url: str
) -> None:
    crew: Crew = new_crew(broker_url, **ALL)
    expected = {
        ("on_rollback", "failure", "raise"),
        ("on_rollback", "requested", "quarantine"),
        ("on_quarantine", "requested", "quarantine"),
        ("on_discard", "requested", "discard"),
        ("on_rollback", "rejected", "rollback-once"),
        ("on_rollback", "signal:9", "dies"),
        ("on_quarantine", "signal:9", "dies"),
    }
    with crew.worker():
        for what in ("raise", "quarantine", "discard", "retry-once"):
            crew.send("asks", what)
        crew.send("asks", "rollback-once")
        crew.send("pays", 1, "dies")
        crew.await_that(lambda: _alarms(crew) >= expected, f"told: {expected}")
        # One alarm fails, and another one kills until it is quarantined: nobody is told of that.
        crew.await_that(lambda: len(crew.quarantine.list()) >= 3, "quarantined")
        crew.await_that(crew.nothing_runs, "nothing left running")
    assert _alarms(crew) == expected
    tasks = [mark.n["input"]["task"] for mark in crew.marks.all("alarm", "start")]
    assert "fleet.alarm" not in tasks
    assert sorted(record.task for record in crew.quarantine.list()) == [
        "fleet.alarm",
        "fleet.asks",
        "fleet.pays",
    ]


def test_TP1_3_of_a_worker_that_died_the_input_message_is_told_too(new_crew: Any, broker_url: str) -> None:
    crew: Crew = new_crew(broker_url, poison_on_rollback="fleet.alarm")
    result = crew.app.tasks["fleet.dies_once"].delay(worker=True)
    with crew.supervise():
        crew.await_that(lambda: crew.marks.all("alarm", "start"), "told")
        result.get(timeout=120)
        crew.await_that(crew.nothing_runs, "forgotten")
    (mark,) = crew.marks.all("alarm", "start")
    told = mark.n["input"]
    assert (mark.n["cause"], told["id"], told["kwargs"]) == ("worker_lost", result.id, {"worker": True})
    assert not crew.quarantine.queries._client.keys("*attempt*"), "the second attempt left nothing"
