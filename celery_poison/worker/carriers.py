"""Requests of ``celery.map``, ``celery.starmap`` and ``celery.chunks``: guarded as what they call."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

from celery_poison.task import PoisonTask
from celery_poison.worker.recorder import Ticket
from celery_poison.worker.request import GuardedRequest


class CarrierRequest(GuardedRequest):
    """Acknowledges late where ``@guarded`` has the called task do so, whatever the app's own setting is."""

    @property
    def is_acknowledged_late(self) -> bool:
        return super().is_acknowledged_late or self._calls_guarded

    @cached_property
    def _calls_guarded(self) -> bool:
        if self.needs is None or self.needs.settings.observe_only:
            return False
        with suppress(Exception):  # any publisher may write such a message
            body = self._message.payload  # Celery has decoded it
            kwargs = body["kwargs"] if isinstance(body, dict) else body[1]
            called = self._app.tasks.get(kwargs["task"]["task"])
            is_late = isinstance(called, PoisonTask) and not called.keeps_acks
            # What must not run twice is not put back for the sake of its neighbours.
            return bool(is_late and called.acks_late and self.needs.policies[called.name][0].rerun)
        return False

    def _make_ticket(self) -> Ticket:
        return super()._make_ticket()._replace(is_acknowledged_late=self.is_acknowledged_late)
