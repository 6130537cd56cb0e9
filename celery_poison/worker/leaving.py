"""A worker that leaves gives back at once what it has not begun, and then waits for what runs (NEW-25).

Celery gives it back with its broker connection, which it keeps until the last running task has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger
from celery.worker.request import Request
from celery.worker.state import reserved_requests

from celery_poison.broker.books import Books
from celery_poison.broker.kinds import broker_of
from celery_poison.broker.tags import number_of
from celery_poison.worker.inflight import InFlight, unchanged

logger = get_logger("celery_poison")

#: Seconds for which the answer to the last poll of Redis is waited for: it takes a tenth.
PATIENCE = 1.0


class Leaving:
    """Gives back what one worker has not begun, as it was asked to leave.

    Args:
        complain: takes what kept it from that: then all goes back at the end, as with Celery.
    """

    def __init__(self, inflight: InFlight, books: Books, complain: Callable[[Exception], None]) -> None:
        self._inflight, self._books, self._complain = inflight, books, complain

    def follow(self, consumer: Any) -> None:
        """Come before Celery, which forgets what waits when a consumer closes for good."""
        blueprint = consumer.blueprint
        forget = blueprint.on_close

        def give_back_and_forget() -> None:
            try:
                self._give_back(consumer)
            except Exception as error:
                self._complain(error)
            if forget is not None:
                forget()

        blueprint.on_close = give_back_and_forget

    def _give_back(self, consumer: Any) -> None:
        """On the event loop, which is over."""
        if consumer.task_consumer is None:
            return
        waiting = [each for each in self._waiting(consumer) if hasattr(each, "put_back_unbegun")]
        if not waiting:
            return
        consumer.task_consumer.cancel()  # else they would come back
        # The oldest last: it is first in line then. RabbitMQ's tags are numbers, ours on Redis end with one.
        waiting.sort(key=lambda request: number_of(f"-{request.message.delivery_tag}"), reverse=True)
        with self._books.together():
            channel = consumer.task_consumer.channel
            broker_of(channel).finish_poll(channel, PATIENCE)  # it would get one, and never look at it
            number = sum(_put_back(request) for request in waiting)
        if number:
            logger.info("celery_poison: messages that had not begun are back in their queues: %s", number)

    def _waiting(self, consumer: Any) -> set[Any]:
        """Return the requests that may not have begun: in the pool or its queue, timed, or rate-limited."""
        later = [each.entry.args for each in unchanged(lambda: list(consumer.timer.schedule.queue))]
        buckets = [bucket for bucket in consumer.task_buckets.values() if bucket]
        return {
            *unchanged(lambda: list(reserved_requests)),
            *self._inflight.in_pool(),
            *(args[0] for args in later if args and isinstance(args[0], Request)),
            *(request for bucket in buckets for request, _ in bucket.contents),
        }


def _put_back(request: Any) -> bool:
    # Celery lets the loop tell the broker, and it turns no more.
    request._on_reject = request.message.reject_log_error
    return bool(request.put_back_unbegun())
