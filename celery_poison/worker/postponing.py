"""Has messages of a task that is not known here go back later, where an extension wants that (NEW-29).

They are parked, as what waits for an earlier start: that costs no delivery limit, and no pool slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_poison.basics.calling import gather
from celery_poison.keep.stored_message import Identity
from celery_poison.model import Start
from celery_poison.policy import Policy
from celery_poison.worker.broadcasts import Broadcasts
from celery_poison.worker.delivery import Delivery, home_of, note_delivery, settle_identity
from celery_poison.worker.site import Site


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Postponing:
    """Postpones the messages of one worker, in the background.

    Attributes:
        judge_soon: has it looked up first: it may be a late copy of what has ended, or runs.
    """

    site: Site
    broadcasts: Broadcasts
    judge_soon: Callable[[Delivery], object]

    def __call__(self, message: Any, identity: Identity, start: Start, epoch: int) -> str | None:
        """Postpone a message that came with this start; else return what its reason in quarantine adds.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        site = self.site
        if identity.by_content or getattr(message, "poison", None) is not None or self.broadcasts(message):
            return ""  # its copies cannot be told from others
        about = site, message, identity.task, home_of(message)
        answers = gather(site.extensions.postponing, site.complain, *about)
        if not answers or not answers[0].pause:
            return answers[0].note if answers else ""
        settle_identity(message, site.settings.trial_queue)
        delivery = note_delivery(
            message,
            Policy(),
            diverts=True,
            token=start.token,
            worker=start.worker,
            pid=start.pid,
            epoch=epoch,
        )
        delivery.paused, delivery.postponed = True, answers[0]
        self.judge_soon(delivery)
        return None
