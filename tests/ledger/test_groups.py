"""The index of groups: true beside many clients, and read as one list."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from celery_poison.desk.finder import Finder
from celery_poison.desk.search import By, Filter
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.groups import GroupKind
from celery_poison.model import Start
from celery_poison.states import Event, State
from tests.ledger.grouping import group_anew, hold_to_records
from tests.ledger.test_transitions import _race


@pytest.fixture
def ledgers(redis_url: str) -> list[Ledger]:
    return [Ledger(open_redis(redis_url), Keys("groups")) for _ in range(4)]


def keep(ledger: Ledger, number: int, tasks: int = 3) -> str:
    task, mid = f"shop.t{number % tasks}", f"m{number:04}"
    start = Start("R", f"t{mid}", "w@h/b", 1, 1, 1, 0, f"id-{mid}", task, f"q{number % 2}", 2, 5, 1, 1)
    fields = {"body": b"x", "fingerprint": f"f{number % 5}"}
    ledger.quarantine.store(mid, start, cause="oom" if number % 7 else "signal:9", reason="", fields=fields)
    return mid


def test_SAP_7_groups_agree_with_the_records_while_many_put_in_and_take_out(ledgers: list[Ledger]) -> None:
    def churn(number: int) -> Callable[[], Any]:
        ledger, dice = ledgers[number], random.Random(number)

        def run() -> None:
            for step in range(60):
                mid = keep(ledger, 1000 * number + step)
                if dice.random() < 0.4:
                    ledger.decisions.give_up(mid, Event.DISCARDED, "ann", "")
                    if dice.random() < 0.5:
                        ledger.decisions.restore(mid, "ann", "")
                elif dice.random() < 0.4:
                    ledger.decisions.complete_release(
                        mid, f"id-{mid}", ledger.decisions.decide(mid, "release", "ann")
                    )

        return run

    _race([churn(number) for number in range(4)])
    hold_to_records(ledgers[0].read, ledgers[0])


@pytest.mark.parametrize("oldest_first", [False, True])
def test_several_groups_are_read_as_one_list_whose_pages_neither_skip_nor_repeat(
    ledgers: list[Ledger], oldest_first: bool
) -> None:
    ledger, queries = ledgers[0], ledgers[0].read
    for number in range(400):
        keep(ledger, number, tasks=97)
    groups = [group for group in ledger.read.alike(GroupKind.QUEUE).groups if group.task < "shop.t5"]
    expected = [
        mid
        for page in queries.pages(State.NDLV, oldest_first=oldest_first)
        for mid, _ in page
        if f"shop.t{int(mid[1:]) % 97}" < "shop.t5"
    ]
    pages = [*ledger.read.members([group.sha for group in groups], oldest_first=oldest_first)]
    found = [mid for mid, _ in chain.from_iterable(pages)]
    assert len(groups) > 64 and len(pages) > 1
    assert sorted(found) == sorted(expected) and len({*found}) == len(found)
    times = [at for _, at in chain.from_iterable(pages)]
    assert times == sorted(times, reverse=not oldest_first)


def spread(ledger: Ledger, count: int, tasks: int = 3) -> None:
    """Keep messages of which several came in the same millisecond."""
    for number in range(count):
        mid = keep(ledger, number, tasks)
        ledger.client.hset(ledger.keys.message(mid), "quarantined_at", 1_000_000 + number // 7)
        ledger.client.zadd(ledger.keys.quarantine, {mid: 1_000_000 + number // 7})
    group_anew(ledger)


@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("text", ["", "task=shop.t1 cause=oom queue=q0", "task!=shop.t2"])
def test_a_page_far_behind_is_what_follows_the_ones_before_it_and_reads_none_of_them(
    ledgers: list[Ledger], monkeypatch: pytest.MonkeyPatch, text: str, oldest_first: bool
) -> None:
    spread(ledgers[0], 200)
    queries = ledgers[0].read
    finder, where = Finder(ledgers[0]), Filter.parse(text) if text else Filter()
    chosen = finder.choose(State.NDLV, where)
    assert chosen.is_exact
    whole = [mid for mid, _ in finder.index(State.NDLV, chosen, where, oldest_first=oldest_first)]
    assert len(whole) == chosen.messages
    read = list[str]()
    records = queries.records
    monkeypatch.setattr(queries, "records", lambda mids: records(read.append(mid) or mid for mid in mids))
    for offset in range(chosen.messages + 3):
        del read[:]
        page = finder.page(where, State.NDLV, rows=3, offset=offset, oldest_first=oldest_first)
        assert [record.mid for record in page.rows] == whole[offset : offset + 3]
        assert page.total == chosen.messages and not {*read} & {*whole[:offset]}


@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("text", ["arguments=", "deliveries>9", "mid=m*3", "mid=m*3 task=shop.t1"])
def test_what_is_looked_for_in_each_message_is_found_bit_by_bit_all_of_it_and_once(
    ledgers: list[Ledger], monkeypatch: pytest.MonkeyPatch, text: str, oldest_first: bool
) -> None:
    monkeypatch.setattr("celery_poison.desk.finder.PAGE_COUNTS_TO", 20)
    spread(ledgers[0], 150)
    finder, where = Finder(ledgers[0]), Filter.search(text)
    expected = [record.mid for record in finder.walk(where, oldest_first=oldest_first)]
    found, begin, offset, pages, looked = list[str](), 0, 0, 0, 0
    while True:
        page = finder.page(
            where, State.NDLV, rows=4, offset=offset, oldest_first=oldest_first, begin=begin, most=10
        )
        assert page.total is None and page.looked <= 10 + 7 + 1
        found += [record.mid for record in page.rows]
        (begin, offset), pages, looked = page.begin, pages + 1, looked + page.looked
        if not page.more:
            break
    assert found == expected
    assert pages > 4 and looked >= 50 and begin == 0


@pytest.mark.parametrize(
    "text",
    [
        "task=shop.t1",
        "task!=shop.t1 queue=q0",
        "cause=sig*",
        "fingerprint=f3",
        "fingerprint=f* task=shop.t2",
        "fingerprint!=f3",
        "fingerprint=[ab]*",
        "queue=q1 fingerprint=f0",
        "task=nobody",
        "crashes<1 fingerprint=f2",
        "age<1h task=shop.t0",
        "arguments=",
        "deaths>0 payload_bytes<1",
        "worker!=w1",
        "mid=m*3 releases_left=0",
        "sig",
        "M04 oom",
    ],
)
def test_a_filter_finds_by_groups_what_it_finds_message_by_message(ledgers: list[Ledger], text: str) -> None:
    queries = ledgers[0].read
    for number in range(60):
        keep(ledgers[0], number)
    where, finder = Filter.search(text), Finder(ledgers[0])
    expected = [record.mid for record in where.choose(queries.kept(State.NDLV))]
    assert sorted(record.mid for record in finder.records(where)) == sorted(expected)
    assert sorted(part.mid for part in finder.walk(where)) == sorted(expected)
    first, last = finder.page(where, State.NDLV, rows=10), finder.page(where, State.NDLV, rows=10, offset=10)
    assert first.total == last.total == len(expected)
    assert len({record.mid for record in [*first.rows, *last.rows]}) == min(20, len(expected))
    for by in By:
        assert sum(group.count for group in finder.groups(where, by)[0]) == len(expected)
