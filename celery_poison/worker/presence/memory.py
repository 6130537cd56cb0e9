"""What this worker remembers for a Redis that may have forgotten it.

The processes that run tasks tell by themselves what they are running, first thing on a new connection.
What has ended is told here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from celery.utils.log import get_logger

from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.records import Start
from celery_poison.verdict import Ended, Phase
from celery_poison.worker.clerk import Clerk
from celery_poison.worker.presence.amnesia import Amnesia
from celery_poison.worker.presence.settler import BATCH, FOR_A_COPY, Acknowledged, Settler
from celery_poison.worker.presence.whereabouts import Whereabouts

logger = get_logger("celery_poison")


class Memory:
    """Tells Redis again how starts of this worker ended.

    Args:
        node: the worker's node name.
        is_heard: tells whether the broker has confirmed every acknowledgement.

    Attributes:
        broker_is_away: its connection was lost, and there is no other yet.
    """

    def __init__(
        self,
        ledger: Ledger,
        node: str,
        amnesia: Amnesia,
        settler: Settler,
        whereabouts: Whereabouts,
        clerk: Clerk,
        is_heard: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._node = node
        self._amnesia = amnesia
        self._settler = settler
        self._whereabouts = whereabouts
        self._clerk = clerk
        self._is_heard = is_heard
        self.broker_is_away = False

    def heard_from(self, run_id: str, forgetful: Callable[[], object]) -> None:
        """Note which Redis answered; if it is another one, call ``forgetful`` and tell it everything."""
        if not self._amnesia.met(run_id):
            return
        logger.warning(
            "celery_poison: the ledger's Redis was restarted or replaced, and may have forgotten its last"
            " moments: it is told again what runs here, and what comes is looked up before it runs"
        )
        forgetful()
        if self._amnesia.broker_forgets:
            self._remind(self._settler.recent())
        self._clerk.do(self._correct)

    def connection_lost(self) -> None:
        """Keep what ended just now on record: nobody knows which acknowledgements the broker heard."""
        keep_for = self._amnesia.grace if self._amnesia.broker_forgets else FOR_A_COPY
        self._remind(self._settler.connection_lost(keep_for))

    def settle(self) -> None:
        """Forget what was acknowledged, while there is a broker that has heard of it."""
        if not self.broker_is_away and self._is_heard():
            self._settler.settle()

    def keep(self, end: Acknowledged) -> None:
        """Have it on record that a start ended, for the copy of its message that comes."""
        self._settler.keep([end], FOR_A_COPY)
        self._remind([end])

    def _remind(self, ended: Iterable[Acknowledged]) -> None:
        starts = [(end.mid, self._start_of(end), Ended.DONE) for end in ended]
        if starts:
            self._clerk.do(partial(self._tell, starts))

    def _tell(self, starts: list[tuple[str, Start, Ended]]) -> None:
        for first in range(0, len(starts), BATCH):
            self._settler.missing += self._ledger.remind(starts[first : first + BATCH])

    def _start_of(self, end: Acknowledged) -> Start:
        worker = f"{self._node}/{end.token.partition('.')[0]}"
        return Start(Phase.RUNNING.value, end.token, worker, 0, 0, 1, 0, end.id, end.task, "", 0, 0, 0, 1)

    def _correct(self) -> None:
        """End the starts that Redis takes for running, since it has forgotten their end."""
        for mid, start, raw in Queries(self._ledger).running():
            ended_well = self._whereabouts.how_ended(start.token)
            if ended_well:
                self._ledger.remind([(mid, start, Ended.DONE)])
            elif ended_well is not None:
                self._ledger.claim(mid, raw, None)
