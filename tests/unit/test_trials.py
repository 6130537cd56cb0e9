"""What the end of a cell says about the suspect that was in it."""

from __future__ import annotations

import io
import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded

from celery_poison.causes import NO_EVIDENCE, Evidence
from celery_poison.cells.cell import pair, put
from celery_poison.cells.pool import MOST, Cells
from celery_poison.cells.trial import ANSWERING, Death, Trial
from celery_poison.upstream.requests import TaskDied, TrialSpoilt

KILLED = Death(-9)


class Heard:
    """A trial whose watcher and cell are this test; what its request and its worker hear."""

    def __init__(self, **limits: float) -> None:
        self.request: list[Any] = []
        self.asked: list[int] = []
        self.trial = Trial(SimpleNamespace(humaninfo=lambda: "it"), 0)
        (control, self.watcher), (data, self.cell) = pair(), pair()
        vars(self.trial).update(limits, _control=control, _data=data, sockets=(control, data))
        vars(self.trial).update(_report=lambda call: call(), _box=io.BytesIO())
        put(self.trial._box, (True, "its end"))
        vars(self.trial).update(_nursery=SimpleNamespace(has_ended=lambda: True))
        vars(self.trial).update(_host=SimpleNamespace(exits=SimpleNamespace(ask=self.asked.append)))
        for name in ("accept_callback", "timeout_callback", "callback", "error_callback"):
            self.trial.callbacks[name] = lambda *args: self.request.append(args)
        for sock in (control, data):
            sock.setblocking(False)
        self.cell.send(pickle.dumps(("accepted", 1, 0.0)))
        self.trial.hear()
        assert self.watcher.recv(64), "its trial begins"

    def error(self, death: Death, evidence: Evidence = NO_EVIDENCE) -> Exception:
        return self.trial.error_of(death, evidence)


def test_NEW_1_who_kills_its_cell_has_died_and_whose_cell_others_ended_has_not() -> None:
    heard = Heard()
    assert isinstance(heard.error(KILLED), TaskDied)
    asked = Evidence(signal=15)
    assert asked.is_from_outside
    assert isinstance(heard.error(Death(-15), asked), TrialSpoilt)
    assert isinstance(heard.error(Death(-9, why="pressed")), TrialSpoilt)


def test_NEW_19_what_others_have_ended_is_not_said_to_have_died_alone() -> None:
    heard = Heard()
    assert heard.trial._story(Death(-9, 54 << 20, "oom"), NO_EVIDENCE) == "died alone: oom; peak 54 MiB"
    pressed = heard.trial._story(Death(-9, 54 << 20, "pressed"), NO_EVIDENCE)
    asked = heard.trial._story(Death(-15), Evidence(signal=15))
    heard.trial.terminated_by = 9
    revoked = heard.trial._story(KILLED, NO_EVIDENCE)
    assert pressed == "others had used up the memory, which decides nothing: it is tried again"
    assert asked == "its cell was asked to end, which decides nothing: it is tried again"
    assert revoked == "was revoked"


def test_a_soft_limit_is_told_once() -> None:
    heard = Heard(soft=1e-9)
    assert not heard.trial.is_over() and not heard.trial.is_over()
    assert heard.request == [(1, 0.0), (True, 1e-9)] and not heard.trial.is_killed


def test_a_hard_limit_ends_a_trial_as_it_ends_a_run_in_the_pool() -> None:
    late = Heard(hard=1e-9, soft=1e-9)
    assert not late.trial.is_over() and late.asked == [0], "where it hangs"
    assert 0 < late.trial.pause() <= ANSWERING
    time.sleep(max(0.0, late.trial.pause()))
    assert not late.trial.is_over() and late.trial.is_killed
    assert len(late.request) == 1, "no soft limit after that"
    assert isinstance(late.error(KILLED), TimeLimitExceeded)


def test_a_revocation_ends_a_trial_as_it_ends_a_run_in_the_pool() -> None:
    revoked = Heard()
    revoked.trial.terminated_by = 15
    assert not revoked.trial.is_over() and revoked.trial.is_killed
    assert isinstance(revoked.error(KILLED), Terminated)


def test_NEW_1_what_a_cell_has_told_before_it_died_is_heard_with_its_death() -> None:
    """Or who has ended there would be taken for one who has not."""
    heard = Heard()
    heard.cell.send(pickle.dumps(("result",)))
    heard.cell.close()
    heard.watcher.send(b'{"status": -9, "peak": 0, "why": ""}')
    heard.watcher.close()
    heard.trial.hear()
    assert heard.request == [(1, 0.0), ("its end",)]
    assert heard.trial.death == Death(-9)
    assert heard.trial.is_over() and heard.trial.tell(), "and is no proof"


@pytest.mark.parametrize(
    ("slots", "setting", "room"), [(4, None, 4), (4, 9, 4), (500, None, MOST), (500, 200, 200)]
)
def test_NEW_1_a_worker_of_hundreds_of_greenlets_tries_not_as_many_at_once(
    slots: int, setting: int | None, room: int
) -> None:
    settings = SimpleNamespace(trial_cells=setting)
    host: Any = SimpleNamespace(loop=None, pool=SimpleNamespace(slots=slots), settings=settings)
    cells = Cells(host, "a test needs none")
    assert cells.room == room
    cells.end()
