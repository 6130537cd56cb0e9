"""Opens under an admit mark what Celery opens in the main process for no guarded task (NEW-5).

That is a compressed body of any other task, and a body whose headers do not name its task. A worker that
dies of one leaves its mark: after enough deaths the message is kept, and not opened any more. Admission opens
bodies of guarded tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from celery_poison import causes
from celery_poison.broker.sealed import Sealed
from celery_poison.decide import Action, Facts, judge
from celery_poison.headers import RELEASE
from celery_poison.keep.stored_message import Identity, identity_of
from celery_poison.model import NO_HISTORY, Guilt, History, Limits, Phase, Start
from celery_poison.worker.delivery import home_of, size_of
from celery_poison.worker.quarantine_writer import QuarantineWriter
from celery_poison.worker.site import Site
from celery_poison.worker.threads import Retry

#: Seconds between two looks at a message whose earlier opening has not ended.
PATIENCE = 0.25


class _UnopenedDelivery(NamedTuple):
    """One message before it is opened; ``epoch`` is the number of the broker connection it came by."""

    message: Any
    identity: Identity
    start: Start
    epoch: int
    release: int


@dataclass(eq=False, repr=False)
class Opening:
    """Opens such bodies before admission.

    Attributes:
        receive: takes what is open, or need not be opened here.
    """

    site: Site
    receive: Callable[[Any], Any]
    quarantine_writer: QuarantineWriter

    def __post_init__(self) -> None:
        site = self.site
        self.loop, self.background, self.ledger = site.loop, site.background, site.ledger
        self.settings, self.me, self.recorder = site.settings, site.me, site.recorder

    def __call__(self, message: Any) -> Any:
        if not self._concerns(message):
            return self.receive(message)
        try:
            letter = self._note(message)
        except Exception as error:
            self.site.complain(error)
            return self.receive(message)
        if message.delivery_info.get("redelivered") or letter.release:
            self.background.do(partial(self._judge, letter), partial(self._ledger_away, letter))
        else:
            self._open(letter, NO_HISTORY)

    def _concerns(self, message: Any) -> bool:
        is_sealed = getattr(message, "sealed", False)
        if not is_sealed and message.content_type == "application/json":
            return False
        if self.settings.observe_only or not self.settings.keep_unprocessable:
            return False
        task = message.headers.get("task")
        is_guarded = isinstance(task, str) and task in self.site.policies
        return not _is_named(message) or (is_sealed and not is_guarded)

    def _note(self, message: Any) -> _UnopenedDelivery:
        identity, release = identity_of(message), message.headers.get(RELEASE)
        start = Start.of(
            *(self.me.next_token(), self.me.worker, identity.id, identity.task),
            queue=home_of(message),
            phase=Phase.ADMITTING,
            pid=self.me.pid,
            payload_bytes=size_of(message),
        )
        return _UnopenedDelivery(
            message, identity, start, self.loop.epoch, release if type(release) is int else 0
        )

    # --- in the background thread --------------------------------------------------------------

    def _judge(self, letter: _UnopenedDelivery) -> None:
        """Open it, or keep it for the deaths that it has caused.

        Raises:
            Retry: a worker that died of it is being recovered.
            LedgerUnavailable: nothing has been decided.
        """
        message, identity, start, epoch, release = letter
        if epoch != self.loop.epoch:
            return  # the broker delivers it again
        settings = self.settings
        known = self.ledger.messages.look(identity.mid, start.id, int(settings.activation_interval * 1000))
        is_elsewhere = known.start is not None and known.start.worker != self.me.worker
        verdict = judge(
            Facts(
                history=known.history,
                foreign_start=is_elsewhere and known.is_in_the_way,
                ended=known.ended,
                kept=known.kept,
                release=release,
                last_release=known.release,
                gate_closed=known.gate_closed,
            ),
            Limits(settings.max_crashes, settings.max_failures, trials=settings.has_trials),
        )
        match verdict.action:
            case Action.WAIT:
                raise Retry(PATIENCE)
            case Action.DROP:
                self.ledger.messages.duplicate(identity.mid, start, reason=verdict.reason)
            case Action.QUARANTINE:
                why = causes.RECEIVE, verdict.reason, settings.keep_unprocessable
                self.quarantine_writer.keep(message, start, identity, *why)
            case _:
                return self.loop.call_in_loop(partial(self._open, letter, known.history))
        if isinstance(message, Sealed):
            message.mark_stored()
        self.loop.call_in_loop(message.ack)

    def _ledger_away(self, letter: _UnopenedDelivery) -> bool:
        if not self.settings.fail_open and not _is_named(letter.message):
            return True  # it may be a guarded task's; one that is named here is not
        self.loop.call_in_loop(partial(self._open, letter, NO_HISTORY))
        return False

    # --- on the event loop ---------------------------------------------------------------------

    def _open(self, letter: _UnopenedDelivery, history: History) -> None:
        """Open it here and now: dying of it is a crash of its own."""
        message, identity, start, epoch, _ = letter
        if epoch != self.loop.epoch:
            return
        self.recorder.mark(identity.mid, start)
        fault = None
        try:
            message.body if _is_named(message) else message.decode()
        except Exception as error:
            fault = error
        if history == NO_HISTORY:
            self.recorder.unmark(identity.mid)
        else:
            self.background.do(partial(self.ledger.messages.acquit, identity.mid, start, Guilt.CLEARED))
        if fault is None:
            self.receive(message)
        else:
            self.loop.consumer.on_decode_error(message, fault)


def _is_named(message: Any) -> bool:
    """Whether its headers tell its task; else its body does, and Celery decodes it for that."""
    return "task" in message.headers and "id" in message.headers
