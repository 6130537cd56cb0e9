"""What becomes of the first runs of a task under a version: facts in, a decision out.

Nothing here knows Redis, Celery or clocks. What is known is one :class:`FirstRuns`, replaced as a whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum

from celery_poison.basics.parts import Turn

#: Deaths of messages with different fingerprints that pause a task.
DEATHS = 2
#: Milliseconds that a run may take from its turn to its start on record.
GRACE = 5_000


class Over(Enum):
    """Why nothing is decided any more; the values stand in the ledger."""

    NOT = ""
    WELL = "well"
    """Enough ended alive: the task runs as ever."""
    LATE = "late"
    """Others had waited for too long: the task runs as ever."""
    DEATHS = "deaths"
    """The task is paused for this version until a person resumes it."""


class FirstRunOutcome(Enum):
    """How a first run ended."""

    ALIVE = "alive"
    DIED = "died"
    UNKNOWN = "unknown"
    """It was revoked, put back or cut off, and is not to blame: another run takes its turn."""


@dataclass(frozen=True, slots=True)
class FirstRuns:
    """The first runs of one task under one version.

    Attributes:
        began: ms since 1970 by Redis' clock, when the first of them had its turn.
        alive: how many ended alive since the last death.
        dead: of those that died, one of each fingerprint: the token, and that.
        mid, token: of the run whose turn it is; empty: no run has it.
        since: when it had its turn, in ms.
    """

    began: int = 0
    alive: int = 0
    dead: tuple[str, ...] = ()
    mid: str = ""
    token: str = ""
    since: int = 0
    over: Over = Over.NOT

    def encode(self) -> str:
        values = self.began, self.alive, self.dead, self.mid, self.token, self.since, self.over.value
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def decode(cls, raw: bytes | str) -> FirstRuns:
        """Read it; what cannot be understood, since a newer version wrote it, decides nothing any more."""
        try:
            values = json.loads(raw) if raw else (0, 0, (), "", "", 0, "")
            began, alive, dead, mid, token, since, over = values
            counts = int(began), int(alive), tuple(map(str, dead))
            return cls(*counts, str(mid), str(token), int(since), Over(over))
        except (ValueError, TypeError, OverflowError, RecursionError):
            return cls(over=Over.LATE)

    def is_busy(self, now: int, *, lives: bool) -> bool:
        """Whether one of them runs, or is about to; ``lives``: its start is on record."""
        return bool(self.token) and (lives or now - self.since < GRACE)


def turn_of(runs: FirstRuns, token: str, *, now: int, lives: bool, is_suspect: bool, has_room: bool) -> Turn:
    """Decide about a message of the task.

    Args:
        token: of the start that it would have.
        now: ms since 1970, by Redis' clock.
        lives: the run whose turn it is has a start on record.
        is_suspect: a death stands against this message, so that its end says little about the version.
        has_room: its worker has a free cell.
    """
    if runs.over is not Over.NOT:
        return Turn.BEGIN
    if runs.token == token:  # its turn was granted, and the answer was lost or something came between
        return Turn.ALONE
    if is_suspect or not has_room or runs.is_busy(now, lives=lives):
        return Turn.PARK
    return Turn.ALONE


def begun(runs: FirstRuns, mid: str, token: str, now: int) -> FirstRuns:
    """Give a message its turn."""
    return replace(runs, began=runs.began or now, mid=mid, token=token, since=now)


def ended(
    runs: FirstRuns, token: str, outcome: FirstRunOutcome, needed: int, fingerprint: str = ""
) -> FirstRuns:
    """Return the first runs after the end of one that had its turn; a second call changes nothing.

    A death counts even if another has the turn by now: its start was off the record for a moment.

    Args:
        needed: how many must end alive in a row.
        fingerprint: of its message: the same poison sent twice is one; empty: it is not known.
    """
    if runs.over is not Over.NOT or token in (name.partition(" ")[0] for name in runs.dead):
        return runs
    has_turn = runs.token == token
    free = replace(runs, mid="", token="", since=0) if has_turn else runs
    if outcome is FirstRunOutcome.DIED:
        if fingerprint and fingerprint in (name.partition(" ")[2] for name in runs.dead):
            return replace(free, alive=0)
        over = Over.DEATHS if len(runs.dead) + 1 >= DEATHS else Over.NOT
        dead = f"{token} {fingerprint}" if fingerprint else token
        return replace(free, alive=0, dead=(*runs.dead, dead), over=over)
    if outcome is FirstRunOutcome.ALIVE and has_turn:
        over = Over.WELL if runs.alive + 1 >= needed else Over.NOT
        return replace(free, alive=runs.alive + 1, over=over)
    return free
