"""Flower's own ``/metrics``, with the quarantine's beside it: open to everybody, as Flower leaves it."""

from __future__ import annotations

from celery.utils.log import get_logger
from flower.views import monitor

from celery_poison.flower.base import desk_of
from celery_poison.metrics import register
from celery_poison.states import State

logger = get_logger(__name__)


class Metrics(monitor.Metrics):
    """Begins to look at the ledger when it is asked for the first time: only then the app is known."""

    async def get(self) -> None:
        settings = self.application.settings
        if not settings.get("_poison_metrics"):
            settings["_poison_metrics"] = True
            try:
                # Neither waits for Redis.
                kept = desk_of(self.application).shelf(State.NDLV)
                register(self.application.capp, census=kept)
            except Exception as error:
                logger.warning("celery_poison: Flower's metrics lack the quarantine's: %s", error)
        await super().get()
