"""Who is tried together, and what the end of their cell says about each of them."""

from __future__ import annotations

import pickle
import selectors
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded

from celery_poison.evidence import NO_EVIDENCE, Evidence
from celery_poison.requests import TaskDied, TrialSpoilt
from celery_poison.verdict import History, smaller_group
from celery_poison.worker.trial import frames
from celery_poison.worker.trial.ends import error_of
from celery_poison.worker.trial.group import FEW, Group, Trial, how_many
from celery_poison.worker.trial.opened import Death, OpenCell

SUSPECT = History(candidate=True, crashes=1, strikes=1, shared_blame=True)
KILLED = Death(-9)


def _request(history: History | None = SUSPECT, *, was_ended: bool = False) -> Any:
    poison = SimpleNamespace(history=history) if history else None
    return SimpleNamespace(poison=poison, companions=0, was_ended=was_ended, humaninfo=lambda: "shop.pay[1]")


def _suspects(count: int, **facts: Any) -> list[Any]:
    return [_request(History(candidate=True, **facts)) for _ in range(count)]


def _group(*requests: Any, hard: float | None = None) -> Group:
    def silent(*_: Any) -> None: ...

    trials = [Trial(r, (), silent, silent, silent, silent, None, hard) for r in requests]
    group = Group(trials)
    group.begin()
    return group


@pytest.mark.parametrize(
    ("pool", "waiting", "most", "together"),
    [
        ("gevent", 1000, 64, 64),
        ("eventlet", 50, 64, 50),
        ("thread", FEW + 1, 64, FEW + 1),
        ("gevent", FEW, 64, 1),
        ("prefork", 1000, 64, 1),
        ("solo", 1000, 64, 1),
        ("gevent", 1000, 1, 1),
    ],
)
def test_NEW_1_very_many_are_tried_together_where_tasks_share_a_process(
    pool: str, waiting: int, most: int, together: int
) -> None:
    assert how_many(_suspects(waiting), pool, most) == together


def test_NEW_1_a_group_is_as_small_as_the_one_needs_who_has_died_in_the_smallest() -> None:
    waiting = [*_suspects(5), *_suspects(5, group=8), *_suspects(60, group=32)]
    assert how_many(waiting, "gevent", 64) == 8
    assert how_many([*_suspects(5), *_suspects(FEW, group=2)], "gevent", 64) == 5, "those take their own turn"


@pytest.mark.parametrize(
    "facts", [{"group": 1}, {"proven": 1}, {"probation": True}, {"spoilt": 1}], ids=lambda facts: str(*facts)
)
def test_NEW_1_who_needs_a_trial_of_his_own_gets_it(facts: dict[str, Any]) -> None:
    others = _suspects(FEW)
    assert how_many([*_suspects(1, **facts), *others], "gevent", 64) == 1
    assert how_many([*others[:7], *_suspects(1, **facts), *others], "gevent", 64) == 7


def test_NEW_1_a_thousand_suspects_of_whom_one_kills_are_halved_until_it_is_alone() -> None:
    size, deaths = 64, 0
    while size > 1:
        size, deaths = smaller_group(size), deaths + 1
    assert deaths == 6
    assert [smaller_group(size, cost_a_worker=True) for size in (64, 16, 4, 3)] == [16, 4, 1, 1]


def test_NEW_1_the_death_of_a_group_says_of_nobody_more_than_that() -> None:
    group = _group(*(_request() for _ in range(10)))
    del group.left[0], group.left[1]
    errors = [error_of(number, group, KILLED, NO_EVIDENCE) for number in group.left]
    assert [(type(error), getattr(error, "group", 0)) for error in errors] == [(TaskDied, 4)] * 8
    assert {trial.request.companions for trial in group.trials} == {9}


def test_NEW_1_a_group_that_was_killed_from_outside_is_tried_again_in_halves() -> None:
    group, asked = _group(*(_request() for _ in range(10))), Evidence(signal=15)
    assert asked.is_from_outside
    for death, evidence in ((Death(-15), asked), (Death(-9, why="pressed"), NO_EVIDENCE)):
        error = error_of(3, group, death, evidence)
        assert isinstance(error, TrialSpoilt) and error.group == 5


def test_NEW_1_whoever_revokes_one_of_a_group_puts_the_others_back_as_they_were() -> None:
    group = _group(*(_request(was_ended=number == 2) for number in range(10)))
    group.terminated_by = 15
    errors = [error_of(number, group, KILLED, NO_EVIDENCE) for number in range(10)]
    assert isinstance(errors.pop(2), Terminated)
    assert all(isinstance(error, TrialSpoilt) and error.group == 10 for error in errors)


def test_NEW_1_a_time_limit_in_a_group_is_held_against_nobody_but_means_a_trial_alone() -> None:
    """One who does not yield keeps all the others from ending in time."""
    group = _group(*(_request() for _ in range(4)), hard=1e-9)
    assert group.is_over() and group.pause() > 1000
    group.overdue = frozenset({1})
    errors = [error_of(number, group, KILLED, NO_EVIDENCE) for number in range(4)]
    assert [(type(error), getattr(error, "group", 0)) for error in errors] == [
        (TrialSpoilt, 4),
        (TrialSpoilt, 1),
        (TrialSpoilt, 4),
        (TrialSpoilt, 4),
    ]


def test_NEW_1_who_was_alone_died_of_himself() -> None:
    assert isinstance(error_of(0, _group(_request()), KILLED, NO_EVIDENCE), TaskDied)
    late = _group(_request(), hard=1e-9)
    assert late.is_over() and isinstance(error_of(0, late, KILLED, NO_EVIDENCE), TimeLimitExceeded)


def test_NEW_1_what_a_cell_has_told_before_it_died_is_heard_before_its_death() -> None:
    """Or who has ended there would be taken for one who has not."""
    (control, watcher), (data, host) = socket.socketpair(), socket.socketpair()
    cell = OpenCell.__new__(OpenCell)
    vars(cell).update(pid=1, _control=control, _data=host, _death=None, _is_silent=False, _told=b"")
    cell._selector = selectors.DefaultSelector()
    for sock in (control, host):
        cell._selector.register(sock, selectors.EVENT_READ)
    for number in range(3):
        frames.send(data, ("result", number, True, pickle.dumps(number), True))
    data.close()
    watcher.sendall(b'{"status": -9, "peak": 0, "why": ""}\n')
    watcher.close()
    heard = [cell.next(1.0) for _ in range(5)]
    assert [said[1] for said in heard[:3]] == [0, 1, 2]
    assert heard[3:] == [Death(-9)] * 2
