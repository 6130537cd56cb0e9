"""What a standby does with the suspects of dead workers: it tries them itself, if nobody else can.

``celery poison monitor --trials`` is a worker that consumes no queue (``standby.py``). Its monitor hands over
here what it would have put back, and what is taken goes the way of every delivery: door, gate, cell.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_poison.broker.adoption import Adoption, Taken
from celery_poison.broker.unacked import Unacked
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.queries import Queries

if TYPE_CHECKING:
    from celery_poison.worker.runtime import Runtime

logger = get_logger("celery_poison")


class Adopter:
    """Takes over suspects for one standby."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._queries = Queries(runtime.ledger)

    def adopt(self, unacked: Adoption, boot_id: str, tags: list[str]) -> list[str]:
        """Take over the suspects among what a dead worker held; return the tags of the rest.

        In the monitor's thread.

        Raises:
            LedgerUnavailable, redis.exceptions.RedisError: Redis is away; what was taken stays so.
        """
        if not tags or not self._is_able:
            return tags
        suspects = {record.id for record in self._queries.candidates()}
        if not suspects:
            return tags
        served = self._served()
        taken, left = unacked.take(
            boot_id, tags, lambda id, queue: id in suspects and queue not in served, self._hand_over
        )
        if taken:
            logger.warning("celery_poison: %d suspects are tried here: no worker serves their queues", taken)
        return left

    @property
    def _is_able(self) -> bool:
        runtime = self._runtime
        return runtime.cells.are_usable and runtime.may_start() and not runtime.stopping

    def _served(self) -> set[str]:
        """Return the queues that living workers consume."""
        with clear_errors("reading whose connections are gone"):
            ledger = self._runtime.ledger
            names: Any = ledger.client.hkeys(ledger.keys.gone)
        gone = {name.decode() for name in names}
        alive = self._queries.workers(self._runtime.activation_ms)
        return {
            queue
            for worker in alive
            if worker.alive and worker.worker not in gone
            for queue in worker.queues.split(",")
        }

    def _hand_over(self, taken: Taken) -> None:
        self._runtime.bridge.call(partial(self._receive, taken))

    def _receive(self, taken: Taken) -> None:
        """Let it come in by the door (on the event loop)."""
        try:
            consumer = self._runtime.consumer.task_consumer
            message = consumer.channel.receive_taken(taken.tag, taken.payload, taken.queue)
        except Exception as error:  # no connection at this moment, or it is leaving
            self._runtime.complain(error)
            self._give_back(taken)
        else:
            consumer._receive_callback(message)

    def _give_back(self, taken: Taken) -> None:
        with self._runtime.app.connection_for_read() as connection:
            Unacked(connection.default_channel).restore([taken.tag])
