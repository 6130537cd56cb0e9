"""A fleet that another package shares."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from celery import Celery

from tests import PATIENCE
from tests.cells.conftest import Court
from tests.integrations.app import build


class Beside(Court):
    """A fleet whose workers have switched on another package, too; see `things`."""

    module = "tests.integrations.app"
    build: ClassVar[Callable[..., Celery]] = staticmethod(build)
    thing: ClassVar[str] = ""

    @property
    def _seen(self) -> Path:
        return self.directory / "seen.jsonl"

    def environ(self) -> dict[str, str]:
        return super().environ() | {"BESIDE": self.thing, "SEEN": str(self._seen)}

    def seen(self, **what: Any) -> list[dict[str, Any]]:
        """What the package told; all of it, or what has these values."""
        lines = self._seen.read_text().splitlines() if self._seen.exists() else []
        told = [json.loads(line) for line in lines]
        return [one for one in told if all(one.get(name) == value for name, value in what.items())]

    def evidence(self) -> str:
        return f"{super().evidence()}\n--- seen\n{self.seen()}"

    def convicts(self) -> None:
        """Send one task that kills its pool process, one that kills the whole worker, and an innocent one:
        two end in quarantine, one is done."""
        poisons = [self.send("kill_child"), self.send("kill_group")]
        innocent = self.send("healthy", 7)
        self.await_that(lambda: len(self.quarantine.list()) == 2, "both poisons are in quarantine")
        assert {record.id for record in self.quarantine.list()} == {poison.id for poison in poisons}
        assert innocent.get(timeout=PATIENCE) == 7


@pytest.fixture
def beside(assemble: Callable[..., Any], redis_url: str) -> Callable[..., Beside]:
    """A function that makes a fleet beside the package of that name; further arguments as for `assemble`."""

    def make(thing: str, **more: Any) -> Beside:
        kind = type("Beside", (Beside,), {"thing": thing})
        made: Beside = assemble(kind, redis_url, **more)
        return made

    return make
