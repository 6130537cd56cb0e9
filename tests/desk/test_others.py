"""`show` says whether others of the task end well meanwhile, and whether the deaths of one are alike."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from celery_poison.causes import Evidence
from celery_poison.desk.advice import decision
from celery_poison.desk.others import Others
from celery_poison.desk.own_deaths import causes_of, comparison, deaths_of, place_of
from celery_poison.desk.reading import Detail
from celery_poison.ledger.journal import FIELDS
from celery_poison.model import MessageRecord
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper

NOBODY = Others(task="shop.report", since=0.0, until=3600.0, is_now=True)
RECORD = MessageRecord(
    id="i", mid="m", task="shop.report", queue="q", state="NDLV", cause="oom", crashes=2, strikes=2
)
DATA, CODE = "look at the data of this message first", "ook at its code first, or at what it needs"


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"well": 214}, f"in the last hour: 214 ended well. Its code works for others: {DATA}."),
        ({"well": 9, "died": 1}, f"9 ended well, 1 died. Its code works for others: {DATA}."),
        ({"died": 3}, f"none ended well, 3 died. L{CODE}."),
        (
            {"well": 1, "raised": 2, "cut_off": 3},
            f"1 ended well, 2 raised an exception, 3 were cut off. Most fail: l{CODE}.",
        ),
        ({"well": 2, "longest_ms": 104, "most_kb": 71 << 10}, "2 ended well (at most 104 ms, 71 MiB)."),
        ({"well": 2, "version": "1.2.3"}, "in the last hour under 1.2.3: 2 ended well."),
        (
            {},
            "No other message of shop.report has ended in the last hour: the journal cannot tell",
        ),
        ({"ever": 59}, "59 runs have ended since the ledger began; how, and when, is not on record"),
        ({"ever": 59, "died": 1}, "is not on record (poison_journal). In the last hour: 1 died."),
    ],
)
def test_NEW_14_the_ends_of_others_say_where_to_look_first(counts: dict[str, Any], words: str) -> None:
    assert words in replace(NOBODY, **counts).sentence


def _died(cause: str, place: str = "", event: str = "crashed") -> dict[str, str]:
    evidence = Evidence(stack=(place,) if place else ()).encode()
    return {"event": event, "cause": cause, "evidence": evidence, "at": "1-0"}


LOOP, HERE = _died("time_limit", "report (/srv/shop.py:39)"), _died("signal:11", "thumb (/srv/shop.py:22)")


@pytest.mark.parametrize(
    ("history", "causes", "sentence"),
    [
        ([HERE], ["signal:11"], ""),
        ([HERE, HERE], ["signal:11"], "Both deaths were there."),
        ([HERE, HERE, HERE], ["signal:11"], "All 3 deaths were there."),
        ([_died("exit:3")] * 2, ["exit:3"], ""),
        ([HERE, _died("signal:11", "f (/srv/shop.py:1)")], ["signal:11"], ""),
        (
            [LOOP, _died("oom")],
            ["time_limit", "oom"],
            "Its deaths differ: time_limit in report (/srv/shop.py:39), then oom.",
        ),
        ([LOOP, {"event": "released"}, HERE], ["signal:11"], ""),
    ],
)
def test_NEW_14_deaths_that_differ_are_named_each_and_those_at_one_place_as_such(
    history: list[dict[str, str]], causes: list[str], sentence: str
) -> None:
    deaths = deaths_of(history)
    assert causes_of(deaths) == causes and comparison(deaths) == sentence


def test_NEW_14_the_place_of_an_earlier_death_stands_in_for_one_that_left_none() -> None:
    deaths = deaths_of([LOOP, _died("oom")])
    assert place_of(deaths, Evidence(oom=True)) == "report (/srv/shop.py:39)"
    pythons = Evidence(stack=("parent (<frozen importlib._bootstrap>:405)",))
    assert place_of([], pythons) == "", "nobody repairs that"
    assert place_of([], Evidence(stack=("f (/x/site-packages/pkg/f.py:1)",))).endswith("f.py:1)"), (
        "as is known"
    )


def test_NEW_14_more_memory_and_a_higher_limit_are_advised_only_where_the_evidence_bears_it() -> None:
    died = replace(RECORD, evidence=Evidence(oom=True, rss_kb=400 << 10))
    hungry = replace(NOBODY, well=3, most_kb=390 << 10)
    modest = replace(NOBODY, well=3, most_kb=71 << 10)

    def detail(others: Others | None, *history: dict[str, str], record: MessageRecord = died) -> Detail:
        return Detail(record, history, None, others=others)

    for others in (None, NOBODY, hungry):
        assert decision(detail(others)).startswith("give it more memory")
    assert decision(detail(modest)) == (
        "where its data is just large, release it to workers with more memory, else repair:"
        " others needed at most 71 MiB"
    )
    assert decision(detail(None, LOOP, _died("oom"))).startswith("repair the code")

    late = replace(RECORD, cause="time_limit", evidence=Evidence(time_limit_s=3.0))
    assert decision(detail(None, record=late)).startswith("raise the limit")
    assert replace(NOBODY, died=1).all_die and not NOBODY.all_die
    assert not (replace(NOBODY, died=1, well=1).all_die or replace(NOBODY, died=1, ever=1).all_die)
    near = detail(replace(NOBODY, well=1, longest_ms=2900), LOOP, LOOP, record=late)
    assert decision(near) == (
        "raise the limit in the task's code, then release: others took at most 2.9 s of 3 s;"
        " if it hangs, repair it"
    )
    stands = decision(detail(None, LOOP, LOOP, record=late))
    assert stands.startswith("repair the task where all deaths were") and stands.endswith("only what is slow")
    quick = decision(detail(replace(NOBODY, well=1, longest_ms=100), record=late))
    assert quick == "repair the code or the input, then release: others took at most 100 ms of 3 s"


def test_NEW_14_show_counts_the_ends_of_others_around_the_death_under_the_same_version(
    keeper: Keeper, fleet: Fleet
) -> None:
    console = Console(fleet.app)
    client, keys, now = keeper.ledger.client, keeper.ledger.keys, int(time.time() * 1000)

    def ended(id: str, ms: int, task: str = "fleet.healthy", **more: str) -> None:
        fields = {"event": "finished", "outcome": "success", "runtime_ms": "250", "run_memory_kb": "2048"}
        client.xadd(
            keys.journal, {**dict.fromkeys(FIELDS, ""), **fields, "id": id, "task": task, **more}, f"{ms}-0"
        )

    ended("long-ago", now - 3 * 3600_000)
    for number in range(3):
        ended(f"well{number}", now - 1000 + number)
    ended("raised", now - 900, outcome="failure")
    ended("hung", now - 899, outcome="lost")
    ended("stranger", now - 898, task="fleet.other")
    other = keeper.send_and_keep("fleet.healthy", 1, cause="exit:7")
    mid = keeper.send_and_keep("fleet.healthy", 2)
    others = console.json("show", mid)["others"]
    counts = {name: others[name] for name in ("well", "raised", "cut_off", "died", "longest_ms", "most_kb")}
    assert counts == {"well": 3, "raised": 1, "cut_off": 1, "died": 1, "longest_ms": 250, "most_kb": 2048}
    assert others["is_now"] and others["sentence"] in console.out("show", mid)
    assert console.json("show", other)["others"]["died"] == 1, "itself is no other"
    client.hset(keys.tally, "fleet.healthy", 7)
    assert not console.json("show", mid)["others"]["ever"], "how they ended is on record"
    shown = console.out("show", other)
    assert "exit:7, no place" in shown.splitlines()[0] and "os._exit" in shown
    client.hset(keys.message(mid), "cause", "blocked")
    client.hset(keys.message(mid), "crashes", 0)
    assert "others" not in console.json("show", mid), "it has not run"
    assert json.loads(json.dumps(others)) == others


def test_NEW_14_where_good_ends_are_only_counted_a_death_says_nothing_of_the_code(
    keeper: Keeper, fleet: Fleet
) -> None:
    keeper.ledger.client.hset(keeper.ledger.keys.tally, "fleet.healthy", 59)
    keeper.send_and_keep("fleet.healthy", 1, cause="exit:7")
    others = Console(fleet.app).json("show", keeper.send_and_keep("fleet.healthy", 2))["others"]
    assert (others["died"], others["ever"]) == (1, 59)
    assert "59 runs have ended" in others["sentence"] and CODE not in others["sentence"]


def test_NEW_14_the_journal_is_read_no_longer_than_a_page_can_wait_and_it_is_told_from_when_on(
    keeper: Keeper,
) -> None:
    ledger, now = keeper.ledger, int(time.time() * 1000)
    pipe = ledger.client.pipeline(transaction=False)
    for number in range(1500):
        pipe.xadd(ledger.keys.journal, {"event": "finished", "task": "t"}, f"{now - 1500 + number}-0")
    pipe.execute()
    bounds = {"enough": 5000, "most": 5000}
    found, since = ledger.read.journal_of_task("t", 0.0, now / 1000, **bounds, seconds=0.0)
    assert (len(found), since) == (1000, (now - 1000) / 1000)
    found, since = ledger.read.journal_of_task("t", 0.0, now / 1000, **bounds, seconds=PATIENCE)
    assert (len(found), since) == (1500, 0.0)
