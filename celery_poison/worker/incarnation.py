"""The names under which one worker lives: it has a new one after each time that it was taken for dead."""

from __future__ import annotations

import os
from uuid import uuid4


class Incarnation:
    """A worker as others know it at this moment.

    Args:
        node: its node name.

    Attributes:
        boot_id: what tells it from every other worker of that name; part of its tokens.
        rejoins: how often it rejoined.
        pid: of its main process.
        issued: number of the last token.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.pid = os.getpid()
        self.rejoins = 0
        self.boot_id = self._life = uuid4().hex[:16]
        self.issued = 0

    @property
    def worker(self) -> str:
        """Its name in the ledger."""
        return f"{self.node}/{self.boot_id}"

    @property
    def first_worker(self) -> str:
        """The name that it was born with, and that its connections keep."""
        return f"{self.node}/{self._life}"

    def next_token(self) -> str:
        """Return the fencing token of a new start (on the event loop)."""
        self.issued += 1
        return f"{self.boot_id}.{self.issued}"

    def rejoin(self) -> None:
        self.rejoins += 1
        self.boot_id = f"{self._life}r{self.rejoins}"
