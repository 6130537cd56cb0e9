"""Remembers who was ever in quarantine: Redis may forget it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Self

from celery_poison import Quarantine
from celery_poison.chaos.stage import Stage
from celery_poison.errors import PoisonError
from celery_poison.states import State

#: Seconds between two looks.
LOOK = 0.5


class Watch:
    """Looks at the quarantine from entering to leaving, in a thread of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="watch", daemon=True)
        self.convicted: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _look_on(self) -> None:
        while not self._over.wait(LOOK):
            self._look()

    def _look(self) -> None:
        if not self._stage.options.plain:
            with suppress(PoisonError):  # Redis is away
                kept = Quarantine(self._stage.app).queries.kept_ids(State.NDLV)
                self.convicted |= {id for _, id in kept}
