"""How many cells a worker opens, and what the end of a cell says about the suspect that was in it."""

from __future__ import annotations

import pickle
import selectors
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded

from celery_poison.causes import NO_EVIDENCE, Evidence
from celery_poison.requests import TaskDied, TrialSpoilt
from celery_poison.sandbox.pool import how_many
from celery_poison.sandbox.process import OpenCell
from celery_poison.sandbox.trial import Death, Trial, error_of, send

KILLED = Death(-9)


def _trial(hard: float | None = None, soft: float | None = None) -> Trial:
    def silent(*_: Any) -> None: ...

    trial = Trial(SimpleNamespace(), (), silent, silent, silent, silent, soft, hard)  # type: ignore[arg-type]
    trial.begin()
    return trial


@pytest.mark.parametrize(("slots", "cells"), [(1, 1), (2, 1), (4, 1), (7, 1), (8, 2), (16, 4), (1000, 4)])
def test_NEW_1_there_is_a_cell_for_four_slots_at_least_one_and_at_most_four(slots: int, cells: int) -> None:
    assert how_many(slots) == cells


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


def test_NEW_1_what_a_cell_has_told_before_it_died_is_heard_before_its_death() -> None:
    """Or who has ended there would be taken for one who has not."""
    (control, watcher), (data, host) = socket.socketpair(), socket.socketpair()
    cell = OpenCell.__new__(OpenCell)
    vars(cell).update(pid=1, _control=control, _data=host, _death=None, _is_silent=False, _told=b"")
    cell._selector = selectors.DefaultSelector()
    for sock in (control, host):
        cell._selector.register(sock, selectors.EVENT_READ)
    send(data, ("accepted", 1, 0.0))
    send(data, ("result", True, pickle.dumps("its end"), True))
    data.close()
    watcher.sendall(b'{"status": -9, "peak": 0, "why": ""}\n')
    watcher.close()
    heard = [cell.next(1.0) for _ in range(4)]
    assert heard == [("accepted", 1, 0.0), ("result", True, "its end", True), Death(-9), Death(-9)]
