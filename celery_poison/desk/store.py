"""An app's ledger as the parts of ``Quarantine`` need it: whose it is, and the messages in it."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

from celery import Celery

from celery_poison.basics.text import decoded, nearest
from celery_poison.desk.owner import check_owner
from celery_poison.errors import IllegalTransition, MessageNotFound
from celery_poison.guard import install
from celery_poison.ledger.fleet_model import consumed_queues
from celery_poison.rules.destinations import where_sent
from celery_poison.settings import Settings
from celery_poison.task import PoisonTask


def require_body(raw: dict[str, bytes]) -> dict[str, bytes]:
    """Return the hash of a message as it is; IllegalTransition if its body is at its named destination."""
    if "sent_at" in raw:
        raise IllegalTransition(where_sent(decoded(raw.get("destination", b""))))
    return raw


class Store:
    """One app, its ledger, and the tasks and queues that the app knows."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.plugin = install(app)
        self.ledger = self.plugin.open_ledger()
        self.queries = self.ledger.read

    @property
    def settings(self) -> Settings:
        return self.plugin.settings

    def check_owner(self) -> bool:
        """Check that the ledger is this app's; return False when no worker has signed it yet.

        Raises:
            SchemaMismatch: it is another's.
        """
        return check_owner(self.app, self.queries)

    # --- messages ------------------------------------------------------------------------------

    def row(self, mid: str) -> dict[str, bytes]:
        """Return the whole hash of a message; its body is empty if it is at its named destination."""
        raw = self.queries.message(mid)
        if not raw:
            raise MessageNotFound(f"no message {mid!r} in quarantine")
        return {"body": b"", **raw}

    def kept(self, mid: str) -> dict[str, bytes]:
        """Return the whole hash of a message that has its body; else as :func:`require_body`."""
        return require_body(self.row(mid))

    # --- tasks and queues ----------------------------------------------------------------------

    def is_registered(self, task: str) -> bool:
        """Whether the app has such a task, in whatever module a worker would load."""
        return task in self.app.tasks or task in self._all_tasks

    @cached_property
    def _all_tasks(self) -> frozenset[str]:
        # What a worker would load at its start: this process may not have needed those modules so far.
        self.app.loader.import_default_modules()
        return frozenset(self.app.tasks)

    def load_tasks(self) -> None:
        """Load what a worker would load at its start, as far as that goes: Django may keep the results."""
        with suppress(Exception):  # what is missing of it is told where it is needed
            _ = self._all_tasks

    def guarded_tasks(self) -> dict[str, PoisonTask]:
        """Return the tasks that a worker of this app would guard, by name."""
        self.app.loader.import_default_modules()
        return {name: task for name, task in self.app.tasks.items() if isinstance(task, PoisonTask)}

    def refuse_unless_guarded(self, task: str, otherwise: str) -> None:
        """Raise MessageNotFound where this app guards no such task; ``otherwise`` names the way round."""
        guarded = self.guarded_tasks()
        if task not in guarded:
            raise MessageNotFound(f"this app guards no task {task!r}{nearest(task, guarded)} ({otherwise})")

    def refuse_unless_known(self, queue: str, otherwise: str) -> None:
        """Raise MessageNotFound where neither a worker nor the app knows such a queue."""
        workers = self.queries.workers(int(self.settings.activation_interval * 1000))
        known = {*self.app.amqp.queues, *(name for worker in workers for name in worker.all_queues)}
        if queue not in known:
            hint = nearest(queue, known)
            raise MessageNotFound(f"no worker consumes queue {queue!r}{hint} ({otherwise})")

    def refuse_unless_consumed(self, queue: str) -> None:
        """Refuse an unknown queue: behind a typing error messages would wait unseen.

        Raises:
            IllegalTransition: no living worker consumes it, and the app names no such queue.
        """
        workers = self.queries.workers(int(self.settings.activation_interval * 1000))
        if queue not in consumed_queues(workers) and queue not in self.app.amqp.queues:
            raise IllegalTransition(
                f"no worker consumes a queue {queue!r}, and the app names none so: start one, or use --force"
            )
