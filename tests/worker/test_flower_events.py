"""What Flower sees: the states of guarded tasks, told by live workers only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery.events.state import State as EventState

from tests.worker.conftest import Crew


class Watcher:
    """Follows the events of an app as Flower does."""

    def __init__(self, crew: Crew) -> None:
        self._app = crew.app
        self.state = EventState()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": self.state.event})
            while not self._stop.is_set():
                try:
                    receiver.capture(limit=None, timeout=0.2, wakeup=False)
                except TimeoutError:
                    continue

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def of(self, id: str) -> Any:
        return self.state.tasks.get(id)


@pytest.fixture
def watcher(crew: Crew) -> Iterator[Watcher]:
    watcher = Watcher(crew)
    yield watcher
    watcher.stop()


def test_a_quarantined_task_shows_QUARANTINED_and_a_decision_changes_what_is_shown(
    crew: Crew, watcher: Watcher
) -> None:
    with crew.worker(args=["-E"]) as worker:
        crew.await_that(lambda: watcher.state.workers, "the worker is seen")
        result = crew.send("kill_child")
        crew.await_that(
            lambda: watcher.of(result.id) and watcher.of(result.id).state == "QUARANTINED", "shown"
        )
        assert "SIGKILL" in watcher.of(result.id).exception
        (kept,) = crew.quarantine.list()
        crew.marks.repair()
        crew.quarantine.release([kept.mid])
        crew.await_that(lambda: watcher.of(result.id).state == "SUCCESS", "released and done")
        assert set(watcher.state.workers) == {worker.hostname}, "no phantom worker"


def test_a_failed_message_is_shown_as_failed(crew: Crew, watcher: Watcher) -> None:
    with crew.worker(args=["-E"]):
        crew.await_that(lambda: watcher.state.workers, "the worker is seen")
        result = crew.send("kill_child")
        crew.await_that(crew.quarantine.list, "in quarantine")
        (kept,) = crew.quarantine.list()
        crew.quarantine.fail([kept.mid])
        crew.await_that(lambda: watcher.of(result.id).state == "FAILURE", "shown as failed")
