"""Known elsewhere (NEW-29): in a rolling deploy a message goes back for a worker that knows its task.

``task_names`` says and reads who knows a task, ``knowers`` decides, ``status_panel`` shows what waits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_poison.basics.parts import Panel, Postponed, Service
from celery_poison.extension import Extension
from celery_poison.extensions.rollout.settings import RolloutSettings
from celery_poison.headers import UNKNOWN_SINCE
from celery_poison.ledger import Ledger

if TYPE_CHECKING:
    from celery_poison.extensions.rollout.task_names import TaskNames

logger = get_logger("celery_poison")

#: Activation intervals for which a message waits for a worker that knew its task and has ended.
GRACE = 3


class Rollout(Extension):
    """Imports what it needs when it is needed: most apps only publish."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        self._names: TaskNames | None = None
        #: Tasks whose messages were said to go back.
        self._logged: set[str] = set()

    def facts(self, site: Any) -> Iterable[tuple[str, str]]:
        from celery_poison.extensions.rollout.task_names import FIELD, digest_of

        yield FIELD, digest_of(site.app.tasks)

    def services(self, site: Any, exits: Any) -> Iterable[Service]:
        from celery_poison.extensions.rollout.task_names import Writing

        yield Writing(site.ledger, site.app.tasks)

    def postponing(self, site: Any, message: Any, task: str, queue: str) -> Iterable[Postponed]:
        from celery_poison.extensions.rollout.knowers import decide

        if not self._patience:
            return
        now, since = int(time.time() * 1000), message.headers.get(UNKNOWN_SINCE)
        since = since if type(since) is int and 0 < since < now else now
        knowers = self._names_in(site.ledger).who_knows(task, queue)
        grace = GRACE * self.host.settings.activation_interval
        postponed = decide(knowers, queue, (now - since) / 1000, self._patience, grace, random.random())
        if postponed.pause:
            message.headers[UNKNOWN_SINCE] = since
            if task not in self._logged:
                self._logged.add(task)
                said = "celery_poison: task %s is not known here: its messages go back, each %s"
                logger.warning(said, task, postponed.note)
        yield postponed

    def panel(self, ledger: Ledger) -> Iterable[Panel]:
        from celery_poison.extensions.rollout.status_panel import panel_of
        from celery_poison.extensions.rollout.task_names import TaskNames

        yield panel_of(ledger, TaskNames(ledger, self.host.settings.activation_interval))

    @property
    def _patience(self) -> float:
        return float(self.host.settings.of(RolloutSettings).unknown_task_wait)

    def _names_in(self, ledger: Ledger) -> TaskNames:
        from celery_poison.extensions.rollout.task_names import TaskNames

        if self._names is None or self._names.ledger is not ledger:
            self._names = TaskNames(ledger, self.host.settings.activation_interval)
        return self._names


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"task_names": "DIGEST"}
EXTENSION = Rollout
