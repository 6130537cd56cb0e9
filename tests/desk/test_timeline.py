"""The death of a worker as lanes: what ran in its slots, and what became of each message (NEW-1)."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.basics.text import clock, short
from celery_poison.desk.timeline import lanes
from celery_poison.flower import timeline_picture
from celery_poison.ledger.journal import FIELDS
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.cli.conftest import Console

HEARD = 1000.0


def entry(at: float, event: str, mid: str = "m1", incident: str = "", **fields: Any) -> dict[str, str]:
    named = {
        "event": event,
        "id": f"id-{mid}",
        "mid": mid,
        "task": "t",
        "incident": incident,
        "state": "TBDL",
    }
    return {**dict.fromkeys(FIELDS, ""), **named, "at": f"{at * 1000:.0f}-0", **fields}


def died(mid: str = "m1", ran: str = "12400", **fields: Any) -> dict[str, str]:
    return entry(1001, "crashed", mid, "i1", cause="worker_lost", runtime_ms=ran, **fields)


def convicted(cause: str = "signal:9", **fields: Any) -> dict[str, str]:
    return entry(1005, "quarantined", cause=cause, **fields)


DIED = "ran at least 12.4 s, died"
TABLE: dict[str, tuple[list[dict[str, str]], str]] = {
    "nothing yet": ([died()], f"{DIED}; put back 1001, no verdict in the journal"),
    "convicted": (
        [died(), entry(1005, "crashed", runtime_ms="2000"), convicted()],
        f"{DIED}; put back 1001, tried 1003, convicted 1005",
    ),
    "cleared, and what a person decides later is not told": (
        [died(), entry(1004, "finished", runtime_ms="1000"), entry(1004, "cleared"), entry(1009, "released")],
        f"{DIED}; put back 1001, tried 1003, cleared 1004",
    ),
    "tried twice": (
        [died(), entry(1003, "interrupted", runtime_ms="1000"), entry(1006, "cleared")],
        f"{DIED}; put back 1001, tried 1002, cleared 1006",
    ),
    "its next worker died, too": (
        [died(), entry(1003, "crashed", incident="i2", runtime_ms="1"), convicted(incident="i2")],
        f"{DIED}; put back 1001, ran at another death 1003, convicted 1005",
    ),
    "kept because a person asked": ([died(), convicted("requested")], f"{DIED}; put back 1001, kept 1005"),
    "only observed": (
        [died(state="DLVD"), entry(1001, "would_quarantine", incident="i1")],
        f"{DIED}; only observed 1001, would be convicted 1001",
    ),
    "frozen": (
        [entry(1001, "interrupted", incident="i1", runtime_ms="500")],
        "ran at least 0.5 s, was interrupted; put back 1001, no verdict in the journal",
    ),
    "asked to leave, and it ran on elsewhere": (
        [
            entry(1001, "interrupted", incident="i1", runtime_ms="500"),
            entry(1004, "finished", runtime_ms="1000"),
        ],
        "ran at least 0.5 s, was interrupted; put back 1001, tried 1003",
    ),
    "no sign of life since it began": (
        [died(ran="0")],
        "ran, died; put back 1001, no verdict in the journal",
    ),
    "no runtime, or none that can be": (
        [died(ran="9" * 99)],
        "ran, died; put back 1001, no verdict in the journal",
    ),
    "its beginning was trimmed": (
        [convicted(incident="i1")],
        "its run is no longer in the journal; convicted 1005",
    ),
}


@pytest.mark.parametrize(("entries", "sentence"), TABLE.values(), ids=TABLE)
def test_NEW_1_a_lane_tells_what_ran_and_what_became_of_it(
    entries: list[dict[str, str]], sentence: str
) -> None:
    strangers = [
        entry(999, "finished", "m9"),
        entry(1001, "crashed", "m8", "i7"),
        entry(1002, "worker_lost", ""),
    ]
    (lane,) = lanes([*strangers, *entries], "i1", HEARD)
    for at in range(1001, 1010):
        sentence = re.sub(rf"\b{at}\b", clock(at), sentence)
    assert lane.sentence == sentence


def test_NEW_1_lanes_are_in_the_order_in_which_their_messages_had_begun() -> None:
    found = lanes([died("m1", "100"), died("m2", "3000"), died("m3", "200")], "i1", HEARD)
    assert [(lane.mid, lane.began) for lane in found] == [("m2", 997), ("m3", 999.8), ("m1", 999.9)]


def test_NEW_1_an_incident_shows_that_one_was_convicted_and_the_other_cleared(
    new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    fleet = new_fleet(redis_url)
    innocent = fleet.send("gated", 1)
    with fleet.supervise(1, "prefork", 2):
        wait_until(lambda: fleet.marks.all("gated", "start"), what=fleet.log_text)
        poison = fleet.send("kill_main")
        wait_until(fleet.quarantine.list, what=fleet.log_text)
        fleet.marks.open_gate()
        wait_until(
            lambda: fleet.quarantine.queries.journal(wanted=lambda each: each["event"] == "cleared"),
            what=fleet.log_text,
        )
    console = Console(fleet.app)
    (incident,) = (each for each in console.json("incidents") if each["kind"] == "worker")
    shown = console.out("incidents", "show", incident["incident"])
    told = {
        match[1]: match[2]
        for match in re.finditer(r"(?m)^  fleet\.\w+\[(\w+)[^\]]*\]  (.*(?:\n    .*)*)", shown)
    }
    time = r"[\w: ]+"
    ends = {innocent.id: f"cleared {time}", poison.id: f"convicted {time}"}
    assert told.keys() == {short(id) for id in ends}, shown
    for id, end in ends.items():
        line = " ".join(told[short(id)].split())
        assert re.fullmatch(
            rf"ran( at least [\d.]+ s)?, died; put back {time}, (tried {time}, )+{end}", line
        ), shown
    assert "no verdict" not in shown

    seen = timeline_picture.read(SimpleNamespace(quarantine=fleet.quarantine), incident["incident"])  # type: ignore[arg-type]
    assert seen.is_whole and not seen.unnamed
    for picture in seen.pictures:
        assert picture.count('class="bar process"') == 2 <= picture.count('class="bar worker"')
        assert picture.count('class="step cleared"') == 1 == picture.count('class="step convicted"')
        assert 'class="death"' in picture and 'aria-label="2 messages ran' in picture


def test_NEW_1_a_run_that_began_after_the_last_sign_of_life_begins_there_in_the_picture() -> None:
    began = [lanes([died(ran="", pid=pid)], "i1", HEARD)[0].began for pid in ("7", "0", "")]
    assert began == [HEARD, None, None], "no process had begun the others"
