"""Queues by which every worker gets a copy of each message (kombu's ``Broadcast``): left to Celery (NEW-23).

All copies have one identity, no copy can be put back for another worker, and a queue goes with its worker:
nothing that is known of one copy is true of another. So their tasks run as without this package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from kombu.common import Broadcast

from celery_poison.upstream.acks import acknowledging, own_acks
from celery_poison.worker.threads import EventLoop

logger = get_logger("celery_poison")


@dataclass(eq=False, repr=False)
class Broadcasts:
    """Tells the messages of such queues, and how their tasks acknowledge.

    Attributes:
        ordinary: the queues that are known to be none.
    """

    app: Celery
    loop: EventLoop
    ordinary: set[str] = field(default_factory=set, init=False)
    #: By queue, or by consumer tag where a transport tells no queue.
    _known: dict[Any, bool] = field(default_factory=dict, init=False)
    _tasks: dict[str, Any] = field(default_factory=dict, init=False)
    _has_said = False

    def __call__(self, message: Any) -> bool:
        """Whether every worker gets a copy of this message."""
        queue = getattr(message, "queue_name", None)
        key = queue or message.delivery_info.get("consumer_tag")
        found = self._known.get(key)
        if found is None:
            consumer = getattr(self.loop.consumer, "task_consumer", None)
            if key is None or consumer is None:
                return False
            found = self._known[key] = _is_broadcast(consumer, key, is_virtual=bool(queue))
            if queue and not found:
                self.ordinary.add(queue)
        return found

    def task(self, task: Any) -> Any:
        """Return the task as it would be without us: acknowledged as it says itself."""
        found = self._tasks.get(task.name)
        if found is None:
            late, reject = own_acks(self.app, task)
            found = self._tasks[task.name] = acknowledging(task, late=late, reject_on_worker_lost=reject)
        return found

    def say(self, queues: Any) -> None:
        """Say at the start which queues are not guarded."""
        names = sorted(str(queue.alias or queue.name) for queue in queues if isinstance(queue, Broadcast))
        if names and not self._has_said:
            self._has_said = True
            logger.warning(
                "celery_poison: every worker gets a copy of each message sent to %s: it is not guarded,"
                " and its tasks acknowledge as they do without celery_poison",
                ", ".join(names),
            )


def _is_broadcast(consumer: Any, key: str, *, is_virtual: bool) -> bool:
    name = next((name for name, tag in consumer._active_tags.items() if tag == key), key)
    queue = next((queue for queue in consumer.queues if queue.name == name), None)
    if queue is None or queue.exchange is None or queue.exchange.type != "fanout":
        return False
    # Redis has such an exchange by PUB/SUB, whatever its queues are; RabbitMQ can bind one that all share.
    return is_virtual or isinstance(queue, Broadcast) or bool(queue.exclusive or queue.auto_delete)
