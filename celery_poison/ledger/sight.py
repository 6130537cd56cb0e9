"""What the scripts tell about one message."""

from __future__ import annotations

from dataclasses import dataclass

from celery_poison.model import Ended, History, Parked, Phase, Start
from celery_poison.states import State


@dataclass(frozen=True, slots=True)
class Sight:
    """What ``look`` saw: a message's newest start, lineage, record in quarantine and parking."""

    raw: bytes
    start: Start | None
    ended: Ended
    owner: str
    history: History
    kept: State | None
    release: int
    parked: Parked | None
    run_id: str
    gate_closed: bool = False

    @property
    def is_in_the_way(self) -> bool:
        """Whether the start on record forbids another one; a claim of a worker that is gone does not."""
        start = self.start
        return start is not None and not (start.phase == Phase.CLAIMED and self.owner != "alive")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Outcome of recording an end: ``finished`` when it had ended well before it died."""

    history: History
    finished: bool = False
    gate_closed: bool = False
