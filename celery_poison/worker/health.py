"""What one worker knows of its ledger: whether it is there, fit and ours, and what changes in it.

That is brought here while the worker runs: policies, blocks, pauses, news for Flower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from celery.worker import state

from celery_poison.basics.parts import Hold
from celery_poison.broker.identity import identity_of, is_same_broker, server_of
from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger import Ledger, connection, signature
from celery_poison.ledger.policies import Versions, versions
from celery_poison.ledger.requested_suspects import wanted
from celery_poison.plugin import Plugin
from celery_poison.settings import Settings
from celery_poison.worker import durable
from celery_poison.worker.announce import Complaints
from celery_poison.worker.blocklist import Checker
from celery_poison.worker.durable import Durable
from celery_poison.worker.recorder import Recorder
from celery_poison.worker.site import Site
from celery_poison.worker.threads import EventLoop, Retry

logger = get_logger("celery_poison")


@dataclass(eq=False, repr=False)
class Health:
    """The health of one worker's ledger, as far as the worker knows.

    Attributes:
        is_up: whether it answered when it was asked last; the heartbeat asks.
    """

    app: Celery
    settings: Settings
    recorder: Recorder
    complain: Complaints
    _enrolled = False
    is_up = True

    def check(
        self, ledger: Ledger, durable_starts: Durable | None, meet_redis: Callable[[Ledger], object]
    ) -> None:
        """Examine the ledger before the worker begins; what is merely doubtful is logged.

        Args:
            meet_redis: is called when the ledger is known to be fit, and ours.

        Raises:
            ConfigurationError: it is unfit, or another app's.
            LedgerUnavailable: only with ``poison_fail_open=False``.
        """
        try:
            for warning in connection.check_server(ledger.client):
                logger.warning("celery_poison: %s", warning)
            if durable_starts is not None:
                durable_starts.decide()
            self.ensure_enrolled(ledger)
            meet_redis(ledger)
        except LedgerUnavailable as error:
            if not self.settings.fail_open:
                raise
            self.is_up = False
            self.complain(error)
            if durable_starts is not None:
                logger.warning("celery_poison: poison_durability='sync': %s", durable.LATER)

    def ensure_enrolled(self, ledger: Ledger) -> None:
        """Check once that the ledger is ours, by the caller's own connection.

        Raises:
            SchemaMismatch, LedgerUnavailable: see :func:`celery_poison.ledger.signature.enroll`.
        """
        if not self._enrolled:
            self.recorder.secret = signature.enroll(
                ledger.client, ledger.keys, **identity_of(self.app), is_same=partial(is_same_broker, self.app)
            )
            self._enrolled = True

    def note_broker(self, ledger: Ledger) -> None:
        """Write down what the broker calls itself, now that this worker is connected to it.

        Raises:
            LedgerUnavailable: see :func:`celery_poison.ledger.signature.sign_broker`.
        """
        if self._enrolled:
            signature.sign_broker(ledger.client, ledger.keys, server=server_of(self.app))

    def is_another_redis(self) -> None:
        """Its Redis was restarted or replaced: whose it is must be asked again."""
        self._enrolled = False


@dataclass(eq=False, repr=False)
class Refresher:
    """Keeps one worker up to date; nothing of it raises.

    While the ledger is away nothing is asked: the heartbeat finds out when it is back, and nobody else
    need wait for it too.
    """

    site: Site
    plugin: Plugin
    health: Health
    checker: Checker
    holds: Sequence[Hold]

    def __post_init__(self) -> None:
        #: The versions of what is in force here; None: not all of it is.
        self._seen: tuple[int, ...] | None = None
        self._version = self.plugin.policy_overrides.version
        self._answers = [hold.version for hold in self.holds]

    def policies(self) -> None:
        """Put policies that were changed at run time into force here (EMS-9)."""
        if self.health.is_up:
            self._attempt(self._policies)

    def _policies(self) -> None:
        self.plugin.refresh_policies(self.site.ledger)
        version = self.plugin.policy_overrides.version
        if version != self._version:
            self.site.policies.update(self.plugin.policies)
            self.site.plans.renew()
            self._version = version
            logger.info("celery_poison: policies of version %d are in force", version)

    def blocks(self) -> None:
        """Put changes of the block list into force here (NEW-3)."""
        if self.health.is_up:
            self._attempt(self.checker.refresh)

    def withhold(self) -> None:
        """Hold back what is not to begin, and go on with what may."""
        self._withhold(is_up=self.health.is_up)

    def _withhold(self, *, is_up: bool) -> bool:
        steps = (partial(self._refresh, hold, is_up=is_up) for hold in self.holds)
        return all([*map(self._attempt, steps)])

    def _refresh(self, hold: Hold, *, is_up: bool) -> None:
        try:
            hold.refresh(is_up=is_up)
        finally:
            if (answers := [each.version for each in self.holds]) != self._answers:
                self._answers = answers
                self.site.plans.renew()

    def _attempt(self, step: Callable[[], object]) -> bool:
        """Take one step; return whether it succeeded."""
        try:
            step()
        except Exception as error:
            self.site.complain(error)
            return False
        return True

    def go_on(self) -> None:
        """Refresh everything, now and in each heartbeat interval (in the background thread)."""
        try:
            try:
                seen = self._look() if self.health.is_up else None
            except Exception as error:  # one that cannot be read keeps the others from nothing
                self.site.complain(error)
                seen = Versions(())
            if seen is None or seen.numbers == self._seen:
                self._withhold(is_up=False)  # a time may be over; the ledger has nothing new
            else:
                steps = self._policies, self.checker.refresh
                is_done = all([*map(self._attempt, steps), self._withhold(is_up=True)])
                self._seen = seen.numbers if is_done else None
            there = seen.there if seen is not None else ()
            keys = self.site.ledger.keys
            if keys.wanted in there and not self.plugin.settings.observe_only:
                hand_over_requested(self.site.ledger, self.site.loop)
            if keys.untold in there and self.site.announce.is_heard:  # else another worker takes them
                self._take_notices()
        except Exception as error:
            self.site.complain(error)
        raise Retry(self.plugin.settings.heartbeat_interval)

    def _look(self) -> Versions:
        keys = self.site.ledger.keys
        followed = (hold.follows for hold in self.holds if hold.follows)
        hashes, others = (keys.policy, keys.blocks, keys.paused, *followed), (keys.wanted, keys.untold)
        return versions(self.site.ledger, hashes, others)

    def _take_notices(self) -> None:
        for news in self.site.ledger.notices.take():
            self.site.loop.call_in_loop(partial(self.site.announce.news, news))


def hand_over_requested(ledger: Ledger, loop: EventLoop) -> None:
    """Have what is wanted, and here, handed over (in the background thread).

    Raises:
        LedgerUnavailable: Redis is away.
    """
    if reasons := wanted(ledger):
        loop.call_in_loop(partial(_hand_over, reasons))


def _hand_over(reasons: Mapping[str, str]) -> None:
    here: list[Any] | None = None
    while here is None:
        with suppress(RuntimeError):  # a pool thread finished a request meanwhile
            here = [*{*state.reserved_requests, *state.active_requests}]
    for request in here:
        # Of a suspect there are notes, since it was looked up.
        if getattr(request, "poison", None) is not None and (reason := reasons.get(request.id)):
            request.hand_over(reason)
