"""The order of a worker's life: each part starts after those that it needs, and ends before them."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import MagicMock

from celery_poison.worker.life import Life, Part


def _life(*parts: Part) -> tuple[Life, list[Exception]]:
    life, complaints = Life(MagicMock()), list[Exception]()
    life.worker.complain = complaints.append  # type: ignore[assignment]
    life.parts = parts or life.parts
    return life, complaints


def test_each_part_of_a_worker_stands_behind_those_that_it_needs() -> None:
    before: set[str] = set()
    for part in _life()[0].parts:
        assert part.name not in before and {*part.needs} <= before, part.name
        before.add(part.name)
    assert {"background", "heartbeat", "monitor"} <= before


def test_parts_start_in_their_order_and_end_the_other_way_round_when_all_have_stopped() -> None:
    steps: list[str] = []

    def part(name: str) -> Part:
        def step(of: str) -> Any:
            return lambda *consumer: steps.append(f"{of} {name}")

        return Part(
            name,
            begin=step("begin"),
            start=step("start"),
            leave=step("leave"),
            drain=step("drain"),
            stop=step("stop"),
            end=step("end"),
        )

    life, complaints = _life(part("a"), part("b"))
    life.begin()
    life.start(None)
    life.leave()
    life.release()
    assert steps == [
        *("begin a", "begin b", "start a", "start b"),
        *("leave b", "leave a", "stop b", "stop a", "end b", "end a"),
    ]
    assert not complaints


def test_a_part_that_fails_as_its_worker_ends_keeps_no_other_from_ending() -> None:
    ended: list[str] = []
    error = RuntimeError("?")
    fails = MagicMock(side_effect=error)
    life, complaints = _life(
        Part("first", leave=fails, end=lambda: ended.append("first")),
        Part("second", stop=fails, end=fails),
        Part("third", end=lambda: ended.append("third")),
    )
    life.leave()
    life.release()
    assert ended == ["third", "first"] and complaints == [error] * 3


def test_NEW_9_a_worker_that_could_not_finish_says_no_farewell_so_that_others_put_back_what_it_left() -> None:
    fails, seen = MagicMock(side_effect=ConnectionResetError()), list[str]()
    for drain in (fails, lambda: seen.append("drained")):
        life, _ = _life(Part("first", drain=lambda: seen.append("first")), Part("second", drain=drain))
        ours: Any = life.worker
        ours.me.pid = os.getpid()
        ours.books.leave_for_good.return_value = True
        life.farewell()
        assert ours.ledger.fleet.retire.called is (drain is not fails) and ours.shutdown.is_over
    assert seen == ["first", "drained", "first"]
