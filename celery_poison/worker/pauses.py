"""Pauses before a message goes back to its queue: its worker keeps it meanwhile, without a slot of the pool.

What a run that was cut off had claimed, a lock for one, is free only when its lease is over. A task that
finds it taken and puts its message back at once would be convicted within a second, and is no poison.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.model import History
from celery_poison.worker.site import Site
from celery_poison.worker.threads import Retry

logger = get_logger("celery_poison")

#: Seconds to which the pauses grow.
LONGEST_PAUSE = 300.0
#: The share of the activation interval that the first pause after a cut-off has, and how the others grow.
FIRST_SHARE, GROWTH = 0.25, 4.0


def pause_before(failures: int, first: float) -> float:
    """Return the seconds before a message is put back for this time: each pause is twice the last."""
    return min(first * 2.0 ** min(failures - 1, 20), max(first, LONGEST_PAUSE))


def pause_after_cut(history: History, interval: float) -> float:
    """Return the seconds before a message is put back by its task, for what a run held that was cut off."""
    if not history.cut_off:
        return 0.0
    times = max(1, history.failures - history.failed_before)
    return min(interval * FIRST_SHARE * GROWTH ** min(times - 1, 10), max(interval, LONGEST_PAUSE))


def are_all_after_cut(history: History) -> bool:
    """Whether each of the put-backs that convict came after a run had been cut off."""
    return bool(history.cut_off) and history.failed_before <= history.old_failures


def of_cut(history: History) -> str:
    """Return the cut of a run that may hinder the next one, as the rest of a sentence."""
    return f"{causes.short(history.cut_off_by)} had cut a run off: a lock that it held may be taken still"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Pauses:
    """Keeps messages of one worker until they go back."""

    site: Site

    def before_rollback(self, name: str, history: History, countdown: float) -> float:
        """Return the seconds before a message goes back that its task puts back.

        Args:
            name: of its request, for the log.
            countdown: that the task itself has asked for; 0: none.
        """
        settings = self.site.settings
        usual = countdown or pause_before(history.failures, settings.rollback_pause)
        after_cut = 0.0 if countdown else pause_after_cut(history, settings.activation_interval)
        if after_cut <= usual:
            return usual
        logger.warning("celery_poison: %s is put back in %g s, after %s", name, after_cut, of_cut(history))
        return after_cut

    def not_reached(self, name: str, error: BaseException | None) -> float:
        """Return the seconds before a message goes back that did not begin: it would fail again."""
        pause = self.site.settings.activation_interval
        logger.warning("celery_poison: %s did not begin, and goes back in %g s: %s", name, pause, error)
        return pause

    def keep(self, seconds: float, put_back: Callable[[], None]) -> None:
        """Put a message back when its time has come; others use its prefetch credit meanwhile."""
        if seconds <= 0:
            return put_back()
        due, epoch = time.monotonic() + seconds, self.site.loop.epoch
        self.site.loop.call_in_loop(partial(self._lend_credit, epoch, back=False))

        def wait() -> None:
            if (left := due - time.monotonic()) > 0:
                raise Retry(left)
            self.site.loop.call_in_loop(partial(self._lend_credit, epoch, back=True))
            put_back()

        self.site.background.do(wait)

    def _lend_credit(self, epoch: int, *, back: bool) -> None:
        if epoch == self.site.loop.epoch:  # else the credits are counted anew
            with suppress(AttributeError):  # a consumer without it
                qos = self.site.loop.consumer.qos
                (qos.decrement_eventually if back else qos.increment_eventually)()
