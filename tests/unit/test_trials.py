"""What the end of a cell says about the suspect that was in it."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded

from celery_poison.causes import NO_EVIDENCE, Evidence
from celery_poison.sandbox.cell import boxed
from celery_poison.sandbox.nursery import Nursery, pair
from celery_poison.sandbox.pool import MOST, Cells
from celery_poison.sandbox.process import Running
from celery_poison.sandbox.running import Trials
from celery_poison.sandbox.trial import NEVER, Death, Trial, error_of
from celery_poison.upstream.requests import TaskDied, TrialSpoilt

KILLED = Death(-9)


def _trial(hard: float | None = None, soft: float | None = None) -> Trial:
    trial = Trial(SimpleNamespace(), 0, False)
    trial.soft, trial.hard = soft, hard
    trial.begin()
    return trial


def test_NEW_1_who_kills_its_cell_has_died_and_whose_cell_others_ended_has_not() -> None:
    assert isinstance(error_of(_trial(), KILLED, NO_EVIDENCE), TaskDied)
    asked = Evidence(signal=15)
    assert asked.is_from_outside
    assert isinstance(error_of(_trial(), Death(-15), asked), TrialSpoilt)
    assert isinstance(error_of(_trial(), Death(-9, why="pressed"), NO_EVIDENCE), TrialSpoilt)


def test_a_limit_and_a_revocation_end_a_trial_as_they_end_a_run_in_the_pool() -> None:
    late = _trial(hard=1e-9, soft=1e-9)
    assert late.is_soft_over() and not late.is_soft_over(), "told once"
    assert late.is_over() and late.is_over() and late.pause() > 1000
    assert isinstance(error_of(late, KILLED, NO_EVIDENCE), TimeLimitExceeded)
    revoked = _trial()
    revoked.terminated_by = 15
    assert not revoked.is_over() and isinstance(error_of(revoked, KILLED, NO_EVIDENCE), Terminated)


def test_NEW_1_what_a_cell_has_told_before_it_died_is_heard_with_its_death() -> None:
    """Or who has ended there would be taken for one who has not."""
    (control, watcher), (data, told) = pair(), pair()
    heard: list[Any] = []
    running = Running.__new__(Running)
    vars(running).update(trial=_trial(), pid=1, death=None, _control=control, _data=data, _watcher=-1)
    vars(running).update(_is_silent=False, _has_result=False, _is_killed=False, _box=boxed((True, "its end")))
    vars(running).update(_kill_at=NEVER, _abandon_at=NEVER, _over_at=NEVER, _report=heard.append)
    for sock in (control, data):
        sock.setblocking(False)
    told.send(pickle.dumps(("accepted", 1, 0.0)))
    told.send(pickle.dumps(("result",)))
    told.close()
    watcher.send(b'{"status": -9, "peak": 0, "taken": 0, "why": ""}')
    watcher.close()
    running.hear()
    assert [call.args for call in heard] == [(1, 0.0), ("its end",)]
    assert running.death == Death(-9)
    assert running.is_over() and running.tell(), "and is no proof"


def test_NEW_9_what_waits_for_the_nursery_when_its_worker_leaves_does_not_begin() -> None:
    loop = SimpleNamespace(epoch=1, call_in_loop=lambda call: heard.append(call.args))
    host: Any = SimpleNamespace(loop=loop, shutdown=SimpleNamespace(is_begun=True))
    trial: Any = SimpleNamespace(request=SimpleNamespace(epoch=1))
    heard: list[Any] = []
    trials, nursery = Trials(host, SimpleNamespace(finished=print, again=print)), Nursery.__new__(Nursery)
    assert trials._open(trial, nursery)
    host.shutdown.is_begun, host.loop.epoch = False, 2
    assert trials._open(trial, nursery)
    assert heard == [(trial,), (trial,)] and not trials._running


@pytest.mark.parametrize(
    ("slots", "setting", "room"), [(4, None, 4), (4, 9, 4), (500, None, MOST), (500, 200, 200)]
)
def test_NEW_1_a_worker_of_hundreds_of_greenlets_tries_not_as_many_at_once(
    slots: int, setting: int | None, room: int
) -> None:
    host: Any = SimpleNamespace(loop=None, pool=SimpleNamespace(slots=slots))
    settings: Any = SimpleNamespace(trial_cells=setting)
    cells = Cells(host, settings, "a test needs none")
    assert cells.room == room
    cells.end()
