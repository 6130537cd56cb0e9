"""Admission: judges what is redelivered, marked, packed or too large, before anything opens it.

It waits in memory while the background executor looks it up. What has to wait for an earlier start is soon
parked in the ledger (TP1-8). A first delivery of a task with an open plan does not come here (:mod:`.road`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.basics.parts import Hold, Turn
from celery_poison.broker.sealed import Sealed
from celery_poison.cells.pool import Cells
from celery_poison.decide import Action, Verdict, judge
from celery_poison.errors import StaleDelivery
from celery_poison.headers import MID, VERDICT, is_unique
from celery_poison.ledger.messages import MessageState
from celery_poison.model import ALONE, Ended, Phase, Start
from celery_poison.rules.destinations import ACTOR
from celery_poison.states import State
from celery_poison.worker.blocklist import Checker
from celery_poison.worker.broadcasts import Broadcasts
from celery_poison.worker.delivery import (
    Delivery,
    facts_of,
    home_of,
    is_copy_of_ended,
    names_of,
    needs_care,
    note_delivery,
    settle_identity,
)
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease
from celery_poison.worker.outcome import Outcomes
from celery_poison.worker.quarantine_writer import QuarantineWriter
from celery_poison.worker.resync import Resync
from celery_poison.worker.site import Site
from celery_poison.worker.threads import Retry
from celery_poison.worker.waiting import PATIENCE, Waiting

logger = get_logger("celery_poison")

#: What is claimed: mid, the start that it replaces, the new start.
Claim = tuple[str, bytes, Start]


@dataclass(eq=False, repr=False)
class Admission:
    """Lets in what is not known to be healthy, or has it judged first.

    Attributes:
        handler: has Celery make a request of a message.
        refuse: keeps a message of a guarded task of which no notes can be made.
    """

    site: Site
    handler: Callable[[Any], Any]
    inflight: InFlight
    cells: Cells
    holds: Sequence[Hold]
    checker: Checker
    resync: Resync
    quarantine_writer: QuarantineWriter
    outcomes: Outcomes
    lease: Lease
    broadcasts: Broadcasts
    refuse: Callable[[Any, Exception], object]

    def __post_init__(self) -> None:
        # Its own, since every message asks for some of them.
        site = self.site
        self.loop, self.background, self.ledger = site.loop, site.background, site.ledger
        self.settings, self.me, self.policies = site.settings, site.me, site.policies
        self.recorder, self.complain = site.recorder, site.complain
        self._askers = [hold for hold in self.holds or () if type(hold).asks is not Hold.asks]
        self._waiting = Waiting(site, self.holds, self._askers, self.cells, self._acknowledge)

    def __call__(self, message: Any) -> Any:
        try:
            delivery = self.notes(message)
        except Exception as error:
            self.complain(error)
            if self._is_guarded(message) and not self.settings.observe_only:
                # No look-up could judge it: let in, it would run past the guard for ever.
                return self.refuse(message, error)
            delivery = None  # garbage in headers: Celery has its own ways with that
        if delivery is None:
            return self.handler(message)
        if delivery.is_asked_about:
            return self.background.do(partial(self._ask_first, delivery))
        limit = delivery.policy.max_payload_bytes
        if delivery.look or delivery.blocked or delivery.caught or delivery.paused or limit is not None:
            return self.judge_soon(delivery)
        return self.let_in(delivery)

    def judge_soon(self, delivery: Delivery) -> None:
        """Have it looked up, and let in only if nothing stands against that."""
        self.background.do_together(self.judge, delivery, partial(self._ledger_away, delivery))

    def _is_guarded(self, message: Any) -> bool:
        task = names_of(message).get("task")
        return isinstance(task, str) and task in self.policies

    def notes(self, message: Any) -> Delivery | None:
        """Return notes about a message that needs care; None for one that goes straight on."""
        names = names_of(message)
        task: Any = names.get("task")
        about = self.policies, self.holds or (), self.checker.concerns
        plan = self.site.plans.of(task, *about, window=self.resync.window)
        if plan is None or "id" not in names or self.broadcasts(message):
            return None
        settle_identity(message, self.settings.trial_queue)
        policy = plan.policy
        if policy.by_queue:
            policy = policy.at(home_of(message))
        again = self.inflight.meets_again(message, message.headers[MID])
        suspected = again or plan.is_suspected
        care = suspected or needs_care(message, policy)
        # What needs care is not read before it was looked up, and is marked (let_in).
        caught = self.checker.catch(message, task) if plan.is_looked_into and not care else None
        suspected, care = suspected or plan.is_asked, care or plan.is_asked or plan.is_paused
        if not (care or caught or plan.is_blockable):
            return None
        delivery = note_delivery(
            message,
            policy,
            diverts=plan.diverts,
            token=self.me.next_token(),
            worker=self.me.worker,
            pid=self.me.pid,
            epoch=self.loop.epoch,
            suspected=suspected,
        )
        delivery.paused, delivery.caught = plan.is_paused, caught
        if plan.is_blockable:
            args = (message, task, policy)
            if not self.checker.must_ask(*args):
                delivery.blocked = self.checker.reason(*args, ask=False)
            else:  # what needs care is asked about when it is let in
                delivery.is_asked_about = not (care or caught)
        return delivery if care or caught or delivery.blocked or delivery.is_asked_about else None

    # --- in the background thread --------------------------------------------------------------

    def judge(self, deliveries: Sequence[Delivery]) -> list[Exception | None]:
        """Look up, judge and claim many messages in two round trips; return the error of each.

        Raises:
            LedgerUnavailable: nothing has been decided.
        """
        errors, claims = dict[str, Exception](), list[tuple[Delivery, Claim]]()
        # Of the others the connection is gone; the broker delivers them again.
        here = [delivery for delivery in deliveries if delivery.epoch == self.loop.epoch]
        self._ask_again(here)
        ids = ((delivery.mid, delivery.start.id) for delivery in here)
        states = self.ledger.messages.look_many(ids, self._activation_ms)
        for hold in self._askers:
            hold.expect({delivery.start.task for delivery in here})
        for delivery, recorded in zip(here, states, strict=True):
            try:
                if claim := self._judge_one(delivery, recorded):
                    claims.append((delivery, claim))
            except StaleDelivery:  # another worker began it after the look-up
                errors[delivery.start.token] = Retry(PATIENCE)
            except Exception as error:
                errors[delivery.start.token] = error
        errors |= self._claim(claims)
        return [errors.get(delivery.start.token) for delivery in deliveries]

    def _ask_again(self, deliveries: Sequence[Delivery]) -> None:
        """Divert nothing by a rule that was taken back: messages may come before that is heard of here."""
        is_first = True  # one look at the ledger is enough for all of them
        for each in (delivery for delivery in deliveries if delivery.caught is not None):
            each.caught = self.checker.catch(each.message, each.start.task, as_of_now=is_first)
            is_first = False
        blocked = [delivery for delivery in deliveries if delivery.blocked]
        if blocked and self.checker.refresh():
            for delivery in blocked:
                args = delivery.message, delivery.start.task, delivery.policy
                delivery.blocked = self.checker.reason(*args, ask=False)

    @property
    def _activation_ms(self) -> int:
        return int(self.settings.activation_interval * 1000)

    def _judge_one(self, delivery: Delivery, recorded: MessageState) -> Claim | None:
        """Carry out the verdict; return the claim if the message is to be let in."""
        recorded = self._complete_release(delivery, recorded)
        self.resync.heard_from(recorded.run_id)
        if pause := self.resync.window.patience:
            raise Retry(pause)  # a worker may be about to put on record again that it runs there
        if self._is_doubtful(delivery):
            raise Retry(PATIENCE)
        if recorded.release:  # a person's decision about this very message
            delivery.caught = None
        foreign, ended = self._earlier_start(delivery, recorded)
        facts = facts_of(delivery, recorded, foreign, ended)
        delivery.has_run = bool(facts.cut_off)
        verdict = judge(facts, delivery.limits(trials=self.settings.has_trials))
        is_one = delivery.is_unique and (is_unique(delivery.mid) or not facts.has_ended)
        uses_up = verdict.action is Action.DROP and not is_one and is_copy_of_ended(delivery, recorded)
        if verdict.action is Action.DROP and not is_one and not uses_up:  # it may be its equal that has ended
            recorded = delivery.set_apart(recorded)
            facts = facts_of(delivery, recorded, False, Ended.NOT)
            verdict = judge(facts, delivery.limits(trials=self.settings.has_trials))
        if self.settings.observe_only:
            self._observe(delivery, recorded, verdict)
            return None
        if uses_up and not self.ledger.messages.claim(delivery.mid, recorded.raw, None):
            raise Retry(0.0)  # another one was the copy
        return self._carry_out(delivery, recorded, verdict)

    def _claim(self, claims: list[tuple[Delivery, Claim]]) -> dict[str, Exception]:
        """Let in those for which no other claim was faster; return the errors of the others, by token."""
        tokens = [delivery.start.token for delivery, _ in claims]
        try:
            granted = self.ledger.messages.claim_many(claim for _, claim in claims)
        except Exception as error:
            return dict.fromkeys(tokens, error)
        for (delivery, _), is_ours in zip(claims, granted, strict=True):
            if is_ours:
                self._enter(delivery)
        return {token: Retry(0.0) for token, is_ours in zip(tokens, granted, strict=True) if not is_ours}

    def _complete_release(self, delivery: Delivery, recorded: MessageState) -> MessageState:
        start = delivery.start
        if recorded.kept is not State.NDLV or not delivery.release or delivery.release != recorded.release:
            return recorded
        # Published, and its operator did not live to say so: the release is a fact all the same.
        actor, note = "", ""
        if VERDICT in delivery.message.headers:
            actor, note = ACTOR, f"a worker took it from the queue {start.queue}"
        self.ledger.decisions.complete_release(
            delivery.mid, start.id, delivery.release, actor, note, start.queue
        )
        return self.ledger.messages.look(delivery.mid, start.id, self._activation_ms)

    def _earlier_start(self, delivery: Delivery, recorded: MessageState) -> tuple[bool, Ended]:
        """Return whether an earlier start stands in the way, and how it ended."""
        start = recorded.start
        if self.inflight.is_running(delivery.mid):
            # Whatever is on record: this worker was taken for dead, or Redis forgot.
            return True, recorded.ended
        if not delivery.redelivered and self.inflight.is_reserved(delivery.mid):
            raise Retry(PATIENCE)  # the first of two copies has not begun, and stands nowhere
        if start is None or start.token == delivery.start.token:  # its own: that claim's answer was lost
            return False, Ended.NOT
        if start.worker == self.me.worker:
            return self.inflight.of(start, recorded.ended)
        return (True, recorded.ended) if recorded.is_in_the_way else (False, Ended.NOT)

    def _observe(self, delivery: Delivery, recorded: MessageState, verdict: Verdict) -> None:
        """Note what was judged; let it in as Celery would."""
        start = delivery.start
        if verdict.action is Action.QUARANTINE:
            self.quarantine_writer.would_quarantine(
                delivery.message, delivery.mid, start, verdict.cause, verdict.reason
            )
        if recorded.start is not None:
            # Both stay on record, each under a name of its own, or the earlier death would be forgotten.
            delivery.overtaken = delivery.mid, recorded.raw
            delivery.mid = f"{delivery.mid}:{start.token}"
        delivery.history = recorded.history
        delivery.start = start._replace(deliveries=recorded.history.deliveries + 1)
        self._enter(delivery)

    def _carry_out(self, delivery: Delivery, recorded: MessageState, verdict: Verdict) -> Claim | None:
        start = delivery.start
        match verdict.action:
            case Action.WAIT:
                self._waiting.wait(delivery, recorded)
            case Action.DROP:
                self.ledger.messages.duplicate(delivery.mid, start, reason=verdict.reason)
                self._acknowledge(delivery)
            case Action.QUARANTINE if delivery.postponed is None:  # who knows its task has its limits
                self._quarantine(delivery, verdict)
            case _ if (turn := self._waiting.turn_of(delivery, verdict)) is Turn.PARK:
                self._waiting.park_freely(delivery, recorded, delivery.start)
            case _:
                if verdict.reason:
                    logger.warning(
                        "celery_poison: Task %s[%s] runs alone: %s", start.task, start.id, verdict.reason
                    )
                alone = verdict.action is Action.RUN_ALONE or turn is Turn.ALONE
                if alone and self._is_tried_elsewhere(delivery):
                    # It takes no slot meanwhile: the active monitor publishes it for its trial.
                    self._waiting.park_freely(delivery, recorded, delivery.start._replace(alone=ALONE))
                else:
                    history = delivery.history = recorded.history
                    delivery.alone, delivery.released = alone, recorded.release > 0
                    delivery.start = start._replace(
                        deliveries=history.deliveries + 1,
                        alone=int(alone),
                        diverts=int(start.diverts or delivery.is_acknowledged_late),
                    )
                    self.inflight.let_in(start.token)
                    return delivery.mid, recorded.raw, delivery.start
        return None

    def _is_tried_elsewhere(self, delivery: Delivery) -> bool:
        """Whether a suspect goes to the trial queue, or waits in the ledger since there is no cell here."""
        if self.settings.trial == "cell":
            return delivery.park > 0 and not self.cells.room
        # What came to a named destination is tried there: it may be the one with the memory for it.
        is_here = VERDICT in delivery.message.headers or delivery.is_from(self.settings.trial_queue)
        return self.settings.trial == "queue" and not is_here

    def _quarantine(self, delivery: Delivery, verdict: Verdict) -> None:
        """Keep the original first, acknowledge it afterwards."""
        what = (delivery.message, delivery.mid, delivery.start, verdict.cause, verdict.reason)
        self.quarantine_writer.write(*what, has_run=delivery.has_run, proves_nothing=verdict.not_rerun)
        self._acknowledge(delivery)

    def _acknowledge(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, Sealed):
            delivery.message.mark_stored()
        self.loop.call_in_loop(delivery.message.ack)

    def _ask_first(self, delivery: Delivery) -> None:
        """Ask the user's function about a message that has just arrived, under an admit mark (NEW-3)."""
        if delivery.epoch != self.loop.epoch:
            return
        first = delivery.start
        delivery.blocked = self._rule_under_mark(delivery)
        if delivery.blocked:
            self.judge_soon(delivery)
            return
        self.recorder.unmark(delivery.mid)
        delivery.start = first
        self.loop.call_in_loop(lambda: delivery.epoch == self.loop.epoch and self.handler(delivery.message))

    def _enter(self, delivery: Delivery) -> None:
        """Hold it against what only the user's function can tell; let it in on the event loop."""
        if delivery.epoch == self.loop.epoch and (reason := self._rule_under_mark(delivery)):
            if not self.settings.observe_only:
                self._refuse(delivery, causes.BLOCKED, reason)
                return
            args = (delivery.message, delivery.mid, delivery.start, causes.BLOCKED, reason)
            self.background.do(partial(self.quarantine_writer.would_quarantine, *args), lambda: False)
        self.loop.call_in_loop(partial(self.inflight.hand_over, self.let_in, delivery))

    def _rule_under_mark(self, delivery: Delivery) -> str:
        """Ask the user's function about the message, under an open admit mark: dying in it is a crash."""
        args = (delivery.message, delivery.start.task, delivery.policy)
        if delivery.released or not self.checker.must_ask(*args):
            return ""
        delivery.start = delivery.start.in_phase(Phase.ADMITTING)
        self.recorder.mark(delivery.mid, delivery.start)
        return self.checker.reason(*args, ask=True)

    def _ledger_away(self, delivery: Delivery) -> bool:
        # What is not to run again may have run.
        stays = delivery.blocked or delivery.paused or not (self.settings.fail_open and delivery.policy.rerun)
        if stays and not self.settings.observe_only:
            return True
        if delivery.caught is not None:
            delivery.caught = None
            self.checker.let_go(delivery.message)
        self._enter(delivery)
        return False

    # --- on the event loop ---------------------------------------------------------------------

    def let_in(self, delivery: Delivery) -> None:
        """Unpack, decode and hand over, under an open admit mark: dying here is a crash of its own."""
        if delivery.epoch != self.loop.epoch:
            # Its copy may come to another worker, and must not wait there for this claim.
            self.outcomes.never_started(delivery, put_back=True)
            return
        if self._is_doubtful(delivery):
            # It stood still since its claim: its mark would replace the entry of who has the message now.
            self.judge_soon(delivery)
            return
        message = delivery.message
        message.poison = delivery
        delivery.forget_trial_queue()
        self.inflight.let_in(delivery.start.token)
        delivery.start = delivery.start.in_phase(Phase.ADMITTING)
        self.recorder.mark(delivery.mid, delivery.start)
        try:
            message.body  # noqa: B018 - unpacks it, here and now, under the admit mark
        except Exception as error:
            self._refuse(delivery, causes.PAYLOAD, f"its body cannot be unpacked: {error!r}")
            return
        if self._is_caught_open(delivery):
            delivery.close_mark(self.recorder)  # it was read, and did no harm
            self.inflight.forget_admitted(delivery.start.token)
            self.judge_soon(delivery)
            return
        self.handler(message)
        delivery.close_mark(self.recorder)  # it did not go to the pool: it waits for its time

    def _is_caught_open(self, delivery: Delivery) -> bool:
        """Whether a hold catches what could not be read before it was let in; it is judged again for that."""
        task = delivery.start.task
        plan = self.site.plans.known.get(task)
        if plan is not None and plan.is_looked_into and not delivery.released:
            delivery.caught = self.checker.catch(delivery.message, task)
        return delivery.caught is not None

    def _is_doubtful(self, delivery: Delivery) -> bool:
        """Whether this worker may have been taken for dead."""
        return not self.settings.observe_only and self.lease.is_doubtful(delivery.start.token)

    def _refuse(self, delivery: Delivery, cause: str, reason: str) -> None:
        verdict = Verdict(Action.QUARANTINE, cause, reason)

        def keep() -> None:
            try:
                self._quarantine(delivery, verdict)
            except StaleDelivery:  # it has a newer start: what becomes of this copy is judged again
                delivery.start = delivery.start.in_phase(Phase.CLAIMED)
                self.judge_soon(delivery)

        self.background.do(keep)
