"""When this worker last met a Redis that may have forgotten something.

A Redis that was restarted has lost what was not on disk, a replica that was promoted what had not reached
it. The workers remember, and tell it again; until all of them have, nothing that it says about a message
is final, and a message that it took from its queue may be delivered once more as if for the first time.
"""

from __future__ import annotations

import time

#: Seconds within which every worker that lives has noticed, and has told again what it is running.
TELL_AGAIN = 1.0


class ResyncWindow:
    """The memory of the ledger's Redis and of the broker's, as far as it is in doubt.

    Args:
        grace: seconds for which a message may come back as if for the first time.
        tell_again: seconds within which every worker has told again what it is running.
    """

    def __init__(self, grace: float, tell_again: float = TELL_AGAIN) -> None:
        self.grace = grace
        self._tell_again = tell_again
        self._run_id: str | None = None
        self._whole_at = self._until = 0.0
        #: Whether the broker can lose its last moments, and deliver a message again without saying so.
        self.broker_forgets = False

    def met(self, run_id: str, up: float = 0.0) -> bool:
        """Note which Redis the ledger is; return whether it is another one, or has been restarted.

        Args:
            run_id: of its server; empty where it may not be asked.
            up: seconds for which it has been running, where that is known.
        """
        if not run_id or run_id == self._run_id:
            return False
        self._run_id = run_id
        since = time.monotonic() - up
        self._whole_at = since + self._tell_again
        self._until = max(self._until, since + self.grace)
        return True

    def reconnected(self) -> None:
        """The broker's connection was lost, perhaps because it was restarted."""
        self._until = time.monotonic() + self.grace

    @property
    def is_suspected(self) -> bool:
        """Whether even a first delivery may be a copy of something that is running, or has ended."""
        return self.broker_forgets and time.monotonic() < self._until

    @property
    def patience(self) -> float:
        """Seconds until the ledger has heard everybody again; 0 when it has."""
        return max(0.0, self._whole_at - time.monotonic())
