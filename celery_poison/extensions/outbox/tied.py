"""What is published with the success of a task (TP1-9, EMS-11), in the process that runs it.

What is published is held back here. When the body has returned, and before a
result is stored, it is kept in the ledger (``tie``), which refuses it if the message has a new owner. It
moves to the outbox in one step with the end of the run, which only follows if the result could be stored. So
it leaves if and only if the task succeeded, whatever dies in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from celery.app.task import Task
from celery.utils.log import get_logger

from celery_poison.broker.capture import Outgoing, captured, reported
from celery_poison.errors import ConfigurationError, LedgerUnavailable, StaleDelivery
from celery_poison.extensions.outbox.lanes import Lanes
from celery_poison.extensions.outbox.packing import row_of
from celery_poison.headers import MARK
from celery_poison.ledger import Ledger
from celery_poison.ledger.writer import command
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from celery_poison.upstream import hooks
from celery_poison.upstream.requests import StaleCompletion
from celery_poison.worker.recorder import Recorder, Ticket

#: The script that lets leave what is tied to a start.
SEND: Final = f"{__package__}:send_tied"

logger = get_logger("celery_poison")


@dataclass(eq=False, repr=False)
class Tied:
    """The messages of one run that leave with its success. False while there are none."""

    recorder: Recorder
    ledger: Ledger
    task: Task
    ticket: Ticket
    start: Start
    _messages: list[Outgoing] = field(default_factory=list, init=False)
    _is_kept = False
    _commands = b""

    def __bool__(self) -> bool:
        return bool(self._messages)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Hold back what is published in here; drop it if this block raises."""
        if not hooks.fits(hooks.Area.OUTBOX):
            raise ConfigurationError(
                "publishing() needs the outbox, which does not fit this version of Celery"
            )
        before = len(self._messages)
        try:
            with captured(self._take):
                yield
        except BaseException:
            del self._messages[before:]
            raise

    def _take(self, outgoing: Outgoing) -> bool:
        self._messages.append(outgoing.as_tied())
        if self.recorder.policy(self.task.name).keeps_attempts:
            self.recorder.note_unsent(self.ticket, reported(outgoing))
        return True

    def keep(self) -> None:
        """Keep what was published, now that the body has returned.

        Raises:
            StaleCompletion: the message has a new owner (EMS-11).
            LedgerUnavailable: with ``poison_fail_open=False``: the task fails, and nothing leaves.
        """
        rows = [row_of(message) for message in self._messages]
        try:
            Lanes(self.ledger).tie(self.ticket.mid, self.start, rows)
        except StaleDelivery as error:
            self._messages.clear()
            raise StaleCompletion(str(error)) from None
        except LedgerUnavailable as error:
            if not plugin_of(self.task.app).settings.fail_open:
                raise
            logger.error("celery_poison: %s publishes before its success: %s", self.task.name, error)
            self._send_directly()
        else:
            self._is_kept = True
            known = {"tied": self.ledger.keys.tied(self.start.token)}
            words = {"mid": self.ticket.mid, "token": self.start.token, "lanes": self.ledger.keys.lane("")}
            self._commands = self.recorder.script_with_end(SEND, known, words)

    def add_to_success(self, script: str, own_keys: Mapping[str, str], words: Mapping[str, Any]) -> None:
        """Run a script in the same step, with keys and arguments by their names."""
        self._commands += self.recorder.script_with_end(script, own_keys, words)

    def at_the_end(self, *, succeeded: bool) -> bytes:
        """Return the commands that belong to the end of the run."""
        if succeeded:
            return self._commands
        # Its result could not be stored, say: what was kept must not leave with a later clean-up.
        return command(b"DEL", self.ledger.keys.tied(self.start.token).encode()) if self._is_kept else b""

    def _send_directly(self) -> None:
        app = self.task.app
        with app.producer_or_acquire() as producer:
            while self._messages:
                message = self._messages[0]
                properties = dict(message.properties)
                expiration = properties.pop("expiration", None)
                producer.publish(
                    message.body,
                    exchange=message.exchange,
                    routing_key=message.routing_key,
                    declare=[app.amqp.queues[message.declare]] if message.declare in app.amqp.queues else [],
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                    headers={**message.headers, MARK: 1},
                    expiration=None if expiration is None else int(expiration) / 1000,
                    **properties,
                )
                del self._messages[0]
