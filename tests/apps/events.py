"""What a fleet's workers tell as Celery events."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from celery import Celery
from celery.events.state import State as EventState

from celery_poison.testing import wait_until


class Watcher:
    """Follows the events of an app as Flower does."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.state = EventState()
        self.events: list[dict[str, Any]] = []
        self._receiver: Any = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        wait_until(lambda: self._receiver is not None)

    def _follow(self) -> None:
        with self._app.connection_for_read() as connection:
            self._receiver = self._app.events.Receiver(connection, handlers={"*": self._hear})
            # One subscription: between two of them, what is told is heard by nobody.
            self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def _hear(self, event: dict[str, Any]) -> None:
        self.events.append(dict(event))
        self.state.event(event)

    def shows(self, id: str, state: str) -> bool:
        task = self.state.tasks.get(id)
        return task is not None and task.state == state

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def stop(self) -> None:
        self._receiver.should_stop = True
        self._thread.join()

    def of(self, id: str) -> Any:
        return self.state.tasks.get(id)

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
