"""The first gate: judges what is redelivered, marked, packed or too large, before anything opens it.

A healthy first delivery passes with three dictionary look-ups. Everything else waits in memory while
the clerk looks it up; the event loop never does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_poison import causes
from celery_poison.ledger.ledger import Sight
from celery_poison.states import State
from celery_poison.task import Attempt
from celery_poison.verdict import Action, Ended, Facts, Phase, Verdict, judge
from celery_poison.worker.clerk import Again
from celery_poison.worker.delivery import Delivery, needs_care, note_delivery

if TYPE_CHECKING:
    from celery_poison.worker.runtime import Runtime

#: Seconds between two look-ups of a message whose earlier start has not ended.
PATIENCE = 0.25


class Door:
    """Stands in for the consumer's ``on_task_received``.

    Args:
        runtime: the worker.
        handler: Celery's own ``on_task_received``.
    """

    def __init__(self, runtime: Runtime, handler: Callable[[Any], Any]) -> None:
        self._runtime = runtime
        self._handler = handler
        self._policies = runtime.policies

    def __call__(self, message: Any) -> Any:
        try:
            delivery = self._notes(message)
        except Exception as error:  # garbage in headers: Celery has its own ways with that
            self._runtime.complain(error)
            delivery = None
        if delivery is None:
            return self._handler(message)
        if delivery.look or delivery.limits.max_payload_bytes is not None:
            return self._runtime.clerk.do(
                partial(self._judge, delivery), partial(self._ledger_away, delivery)
            )
        return self._let_in(delivery)

    def _notes(self, message: Any) -> Delivery | None:
        found = self._policies.get(message.headers.get("task"))
        if found is None or not needs_care(message, found[0]) or "id" not in message.headers:
            return None
        runtime, (policy, diverts) = self._runtime, found
        return note_delivery(
            message,
            policy,
            diverts=diverts,
            token=runtime.next_token(),
            worker=runtime.worker,
            pid=runtime.pid,
            epoch=runtime.epoch,
        )

    # --- in the clerk's thread -----------------------------------------------------------------

    def _judge(self, delivery: Delivery) -> None:
        if delivery.epoch != self._runtime.epoch:
            return  # its connection is gone; the broker delivers it again
        sight = self._look(delivery)
        foreign, ended = self._earlier_start(sight)
        facts = Facts(
            history=sight.history,
            foreign_start=foreign,
            ended=ended,
            kept=sight.kept,
            release=delivery.release,
            last_release=sight.release,
            payload_bytes=delivery.start.payload_bytes,
        )
        self._carry_out(delivery, sight, judge(facts, delivery.limits))

    def _look(self, delivery: Delivery) -> Sight:
        ledger, start = self._runtime.ledger, delivery.start
        sight = ledger.look(delivery.mid, start.id, self._runtime.activation_ms)
        if sight.kept is State.NDLV and delivery.release and delivery.release == sight.release:
            # Published, and its operator did not live to say so: the release is a fact all the same.
            ledger.released(delivery.mid, start.id, delivery.release)
            sight = ledger.look(delivery.mid, start.id, self._runtime.activation_ms)
        return sight

    def _earlier_start(self, sight: Sight) -> tuple[bool, Ended]:
        """Return whether an earlier start stands in the way, and how it ended."""
        start = sight.start
        if start is None:
            return False, Ended.NOT
        if start.worker == self._runtime.worker:
            return self._runtime.whereabouts.of(start, sight.ended)
        if start.phase == Phase.CLAIMED and sight.owner != "alive":
            return False, Ended.NOT
        return True, sight.ended

    def _carry_out(self, delivery: Delivery, sight: Sight, verdict: Verdict) -> None:
        runtime = self._runtime
        match verdict.action:
            case Action.WAIT:
                raise Again(PATIENCE)
            case Action.DROP:
                runtime.ledger.duplicate(delivery.mid, delivery.start, reason=verdict.reason)
                runtime.bridge.call(delivery.message.ack)
            case Action.QUARANTINE:
                self._quarantine(delivery, verdict)
            case _:
                self._claim(delivery, sight, alone=verdict.action is Action.RUN_ALONE)

    def _quarantine(self, delivery: Delivery, verdict: Verdict) -> None:
        self._runtime.keep(delivery.message, delivery.mid, delivery.start, verdict.cause, verdict.reason)
        self._runtime.bridge.call(delivery.message.ack)

    def _claim(self, delivery: Delivery, sight: Sight, *, alone: bool) -> None:
        delivery.history, delivery.alone = sight.history, alone
        delivery.start = delivery.start._replace(deliveries=sight.history.deliveries + 1, alone=int(alone))
        self._runtime.whereabouts.let_in(delivery.start.token)
        if not self._runtime.ledger.claim(delivery.mid, sight.raw, delivery.start):
            raise Again(0.0)
        self._runtime.bridge.call(partial(self._let_in, delivery))

    def _ledger_away(self, delivery: Delivery) -> bool:
        if not self._runtime.settings.fail_open:
            return True
        self._runtime.bridge.call(partial(self._let_in, delivery))
        return False

    # --- on the event loop ---------------------------------------------------------------------

    def _let_in(self, delivery: Delivery) -> None:
        """Unpack, decode and hand over, under an open admit mark: dying here is a crash of its own."""
        if delivery.epoch != self._runtime.epoch:
            return
        message = delivery.message
        message.poison = delivery
        self._runtime.whereabouts.let_in(delivery.start.token)
        delivery.start = delivery.start.in_phase(Phase.ADMITTING)
        self._runtime.note(delivery.mid, delivery.start)
        try:
            message.body  # noqa: B018 - unpacks it, here and now, under the admit mark
        except Exception as error:
            self._refuse(delivery, f"its body cannot be unpacked: {error!r}")
            return
        self._handler(message)
        self._received(delivery)

    def _received(self, delivery: Delivery) -> None:
        """Close the admit mark: the message was received and harmed nobody. Its request may run already."""
        if delivery.start.phase == Phase.ADMITTING:
            delivery.start = delivery.start.in_phase(Phase.CLAIMED)
            self._runtime.note(delivery.mid, delivery.start)

    def _refuse(self, delivery: Delivery, reason: str) -> None:
        verdict = Verdict(Action.QUARANTINE, causes.PAYLOAD, reason)
        self._runtime.clerk.do(partial(self._quarantine, delivery, verdict))


def attempt_of(delivery: Delivery | None) -> Attempt:
    """Return what ``self.request.poison`` shows for a delivery."""
    if delivery is None:
        return Attempt()
    history = delivery.history
    return Attempt(
        deliveries=delivery.start.deliveries,
        crashes=history.crashes,
        failures=history.failures,
        redelivered=delivery.redelivered,
        candidate=history.candidate,
        on_trial=delivery.alone,
    )
