"""What this worker knows about its own starts, for the day when one of their messages comes back.

A message may be delivered again while its first delivery still runs here (the broker connection was
lost), or after it ended here and the ledger never heard of that.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Container
from contextlib import suppress
from typing import Any

from celery.worker.state import active_requests

from celery_poison.model import Ended, Phase, Start

#: Ended starts that are remembered; a copy comes back within seconds or not at all.
MEMORY = 20_000


class InFlight:
    """Starts of one worker process: let in, in the pool, or ended.

    Attributes:
        undecided: requests that have ended, and whose message is kept until its fate is on record.
    """

    def __init__(self) -> None:
        self.undecided: set[Any] = set()
        self._let_in: set[str] = set()
        self._in_pool: dict[str, Any] = {}
        self._ended: OrderedDict[str, bool] = OrderedDict()

    def let_in(self, token: str) -> None:
        """A delivery of the present connection was admitted."""
        self._let_in.add(token)

    def dropped(self, token: str) -> None:
        """It was revoked, expired or rejected before it went to the pool."""
        self._let_in.discard(token)

    def went_to_pool(self, token: str, request: Any) -> None:
        self._let_in.discard(token)
        self._in_pool[token] = request

    def tags_in_use(self) -> set[str]:
        """Return the delivery tags of what has begun, or whose fate is being decided; from any thread."""
        while True:
            with suppress(RuntimeError):  # another thread changed them meanwhile
                return {str(request.message.delivery_tag) for request in (*active_requests, *self.undecided)}

    def is_in_pool(self, token: str) -> bool:
        return token in self._in_pool

    def in_pool(self) -> list[Any]:
        """Return the requests that run, or were handed to the pool to run."""
        return list(self._in_pool.values())

    def is_running(self, mid: str) -> bool:
        """Whether a message runs, or was handed to the pool to run."""
        return any(request.mid == mid for request in self.in_pool())

    def left_pool(self, token: str, *, ended_well: bool) -> None:
        self._in_pool.pop(token, None)
        self._ended[token] = ended_well
        if len(self._ended) > MEMORY:
            self._ended.popitem(last=False)

    def connection_lost(self, active: Container[Any]) -> set[str]:
        """Forget what had not begun: it is dropped, and the broker delivers it again.

        Returns the tokens of what was let in and not sent to the pool yet.
        """
        void, self._let_in = self._let_in, set()
        self._in_pool = {token: request for token, request in self._in_pool.items() if request in active}
        return void

    def is_known(self, start: Start) -> bool:
        """Whether a start is on its way here, runs, or has an end that is being put on record."""
        if start.token in self._in_pool or start.token in self._let_in:
            return True
        if any(request.start().token == start.token for request in list(self.undecided)):
            return True
        # It may have begun although it was thought dropped: only its process knows.
        return start.phase == Phase.RUNNING and start.token not in self._ended and _exists(start.pid)

    def how_ended(self, token: str) -> bool | None:
        """Return whether a start ended well here; None if it did not end, or that is long ago."""
        return None if token in self._in_pool or token in self._let_in else self._ended.get(token)

    def of(self, start: Start, ended: Ended) -> tuple[bool, Ended]:
        """Return whether an entry of this worker stands in the way of a copy, and how it ended."""
        if ended is not Ended.NOT:
            return True, ended
        if start.token in self._in_pool or start.token in self._let_in:
            return True, Ended.NOT
        if start.token in self._ended:
            well = self._ended[start.token]
            return well, Ended.DONE if well else Ended.NOT
        # It began although it was thought dropped: only its process knows more.
        return start.phase == Phase.RUNNING and _exists(start.pid), Ended.NOT


def _exists(pid: int) -> bool:
    if not pid:  # no process has said that it began
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
