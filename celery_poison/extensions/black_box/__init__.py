"""The black box (NEW-19): whose memory grew, how fast, and where in its code, when a whole container went.

``sampler`` looks at the memory of busy processes and tells the ledger while some grows, ``shared`` says whose
it is where tasks share one process, ``record`` is what the ledger is told, and what that proves: it is
evidence, and convicts no message.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from celery_poison.basics.parts import Service
from celery_poison.causes import Evidence
from celery_poison.extension import Extension
from celery_poison.ledger import Ledger


class BlackBox(Extension):
    """Fills and reads the black boxes of an app's workers."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        #: Of the workers in this process; their heartbeats hold them.
        self._samplers: WeakSet[Any] = WeakSet()

    def services(self, site: Any, exits: Any) -> Iterable[Service]:
        from celery_poison.extensions.black_box.sampler import Sampler  # not where an app only publishes

        sampler = Sampler(site, exits)
        self._samplers.add(sampler)
        yield sampler.look

    def testify(self, evidence: Evidence, worker: str, token: str) -> Evidence:
        if evidence.signal not in (None, signal.SIGKILL) or evidence.exit is not None:
            return evidence
        growths = (each.growth for each in list(self._samplers) if each.site.me.worker == worker)
        growth = next(growths, None)
        return evidence if growth is None else growth.told_of(evidence, token)

    def recall(self, evidence: Evidence, worker: str, token: str, ledger: Ledger) -> Evidence:
        from celery_poison.extensions.black_box.memory_record import read

        growth = read(ledger, worker)
        return evidence if growth is None else growth.told_of(evidence, token)


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"growth": "INC"}
EXTENSION = BlackBox
