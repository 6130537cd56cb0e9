"""Lets a live worker tell Flower what a person decided; the decision stands whether that works or not."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.broker.publish import bounded_connection
from celery_poison.ledger.queries import Queries
from celery_poison.records import MessageRecord

logger = get_logger(__name__)

#: Decisions that Flower's page of tasks shows.
TOLD = ("release", "fail")


class Herald:
    """Speaks for one act: asks one live worker, and is silent after the first failure.

    So a broker that does not answer costs one time-out, not one for each message.
    """

    def __init__(self, app: Celery, queries: Queries, activation_ms: int) -> None:
        self._app = app
        self._queries = queries
        self._activation_ms = activation_ms
        self._node: str | None = None
        self._silent = False
        self._connection: Any = None

    def tell(self, verb: str, record: MessageRecord) -> None:
        """Ask the worker to send the event for ``verb``; without any worker, nobody is told."""
        if self._silent or verb not in TOLD:
            return
        try:
            self._ask({"verb": verb, "id": record.id, "reason": record.story})
        except Exception as error:
            self._silent = True
            logger.debug("celery_poison: no worker could be asked to announce %s: %s", verb, error)

    def _ask(self, told: dict[str, str]) -> None:
        if self._node is None:
            workers = self._queries.workers(self._activation_ms)
            alive = [worker.node for worker in workers if worker.alive and not worker.stopping]
            self._silent = not alive
            self._node = alive[-1] if alive else None
        if self._node is not None:
            self._connection = self._connection or bounded_connection(self._app)
            self._app.control.broadcast(
                "poison_announce", arguments=told, destination=[self._node], connection=self._connection
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.release()
