"""Containers that go as a whole, as Kubernetes' do when their memory is used up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_poison.extensions.cost.losses import read
from celery_poison.testing import Supervisor
from tests import PATIENCE, sampled
from tests.apps.confined import Confined, killed_as_a_whole, new_memory_group
from tests.apps.harness import ROOT
from tests.cells.conftest import Court

LIMIT = 600 << 20


@pytest.fixture
def container() -> Iterator[Path]:
    with new_memory_group(LIMIT) as group, killed_as_a_whole(group):
        yield group


def _supervised(court: Court, container: Path, concurrency: int = 1) -> Supervisor:
    """One worker, whose container is started again when it has gone."""

    def make(name: str) -> Confined:
        log = court.directory / f"{name}.log"
        options: dict[str, Any] = {"env": court.environ(), "cwd": ROOT, "log_path": log}
        made = Confined(court.module, name=name, concurrency=concurrency, **options)
        made.group = container
        return made

    return Supervisor(make, restart_delay=0.5)


@pytest.mark.parametrize("how", sampled(["steps"], ["at-once", "grows"]))
def test_NEW_1_whoever_takes_memory_fast_costs_two_containers_at_most(
    court: Court, container: Path, how: str
) -> None:
    poison = court.app.tasks["trial.takes"].delay(how)
    with _supervised(court, container) as supervisor:
        court.await_that(court.quarantine.list, "in quarantine")
        assert 1 <= len(supervisor.deaths) <= 2
    (kept,) = court.quarantine.list()
    assert (kept.id, kept.cause) == (poison.id, "oom")
    lost = read(court.ledger)  # NEW-28: a kernel's own kills
    assert (
        lost.ever["worker_lost", "trial.takes"].runs == sum(each.runs for each in lost.deaths.values()) >= 1
    )
    assert lost.ever["oom", "trial.takes"].runs == 1 and " oom" in lost.line


def test_NEW_1_suspects_that_need_more_memory_together_than_there_is_are_tried_one_after_the_other(
    court: Court, container: Path
) -> None:
    """The youngest is ended without a strike, and tried again when nothing runs beside it."""
    suspects = [court.suspect("trial.grows", 250) for _ in range(3)]
    with _supervised(court, container, concurrency=3) as supervisor:
        assert [suspect.get(timeout=3 * PATIENCE) for suspect in suspects] == [250] * 3
        court.await_acquittal()
        assert not supervisor.deaths
        assert "is tried again, alone: memory is short" in court.log_text()
    assert not court.events("crashed")[3:] and not court.events("interrupted")


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["reserves", "catches"])
def test_NEW_1_whoever_only_reserves_memory_or_does_without_is_cleared(
    court: Court, container: Path, how: str
) -> None:
    suspect: Any = court.suspect("trial.takes", how)
    with _supervised(court, container) as supervisor:
        assert suspect.get(timeout=PATIENCE) == how
        court.await_acquittal()
        assert not supervisor.deaths
    (begun,) = court.marks.all("takes", "start")
    assert begun.id == suspect.id
