"""Fleets whose app also has the tasks of tests.worker.apps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from tests.apps.harness import Fleet
from tests.worker.apps import build


@dataclass
class Crew(Fleet):
    """A fleet with more kinds of tasks, and questions that tests ask often."""

    module = "tests.worker.app"
    build = staticmethod(build)

    def starts(self, task: str) -> int:
        return len(self.marks.all(task, "start"))

    def done(self) -> int:
        """How many of the healthy tasks have run to their end."""
        return len(self.marks.count("healthy", "end"))

    def unguarded(self) -> int:
        """How many tasks the present workers ran unguarded, as they tell themselves."""
        return sum(worker.unguarded for worker in self.quarantine.queries.workers(1000))

    def no_strikes(self) -> bool:
        suspects = [*self.quarantine.list(), *self.quarantine.list(candidates=True)]
        return not self.events("crashed") and not suspects

    def nothing_runs(self) -> bool:
        """Whether the ledger has forgotten every start."""
        return not [*self.quarantine.queries.running()]

    def evidence(self) -> str:
        """Add what the ledger says runs."""
        return f"{super().evidence()}\n--- runs, by the ledger\n{[*self.quarantine.queries.running()]}"


@pytest.fixture
def new_crew(assemble: Callable[..., Crew]) -> Callable[..., Crew]:
    return partial(assemble, Crew)


@pytest.fixture
def crew(new_crew: Callable[..., Crew], broker_url: str) -> Crew:
    return new_crew(broker_url)
