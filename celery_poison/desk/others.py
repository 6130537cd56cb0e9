"""Other messages of a task around a death: they tell whether its code or one message is to blame.

The journal has it already: nothing is recorded for this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_poison import causes
from celery_poison.basics.numbers import whole
from celery_poison.basics.text import clean, clock, span, span_in_two
from celery_poison.ledger.views import Views
from celery_poison.model import MessageRecord, Record
from celery_poison.states import Event, State

#: Seconds before and after the last death of a message in which the others are looked at.
_BEFORE, _AFTER = 3600, 600
#: Where no more is read: entries of the task, and of all tasks; seconds, since a page waits for that.
_BOUNDS = {"enough": 300, "most": 10_000, "seconds": 1.0}
#: Outcomes of runs that ended well, and of others: the field that counts them.
_WELL, _BAD = ("success", "ignored"), {"failure": "raised", "lost": "cut_off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Others(Record):
    """Other messages of a task around a death.

    Attributes:
        since, until: between when, in seconds of Redis' clock; ``is_now``: up to this moment.
        version: of the code that this message died under, as only others of the same count; empty: unknown.
        well: messages that ended well, ``raised`` with an exception; ``died``: that killed a process;
            ``cut_off``: by a time limit or a revocation.
        longest_ms: the longest run of those that ended well; None: not on record.
        most_kb: the most memory that one of them needed for itself, in KiB; None: not on record.
        ever: runs that have ended since the ledger began, where these are only counted (``poison_journal``).
    """

    task: str
    since: float
    until: float
    is_now: bool
    version: str = ""
    well: int = 0
    raised: int = 0
    died: int = 0
    cut_off: int = 0
    longest_ms: int | None = None
    most_kb: int | None = None
    ever: int = 0

    @property
    def all_die(self) -> bool:
        """Whether others have died, and none ended well, as far as it is on record."""
        return self.died > 0 and not (self.well or self.ever)

    @property
    def sentence(self) -> str:
        """The counts, and what they suggest."""
        under = f" under {clean(self.version)}" if self.version else ""
        if self.is_now:
            lasted = span(self.until - self.since)
            when = f"in the last {'hour' if lasted == '1 h' else lasted}"
        else:
            when = f"between {clock(self.since)} and {clock(self.until)}"
        ends = ((self.raised, "raised an exception"), (self.died, "died"), (self.cut_off, "were cut off"))
        bad, task = [f"{number} {how}" for number, how in ends if number], clean(self.task)
        if self.ever:
            died = f" {when[0].upper()}{when[1:]}{under}: {', '.join(bad)}." if bad else ""
            return (
                f"Others of {task}: {self.ever} runs have ended since the ledger began; how, and when, is not"
                f" on record (poison_journal).{died}"
            )
        if not (self.well or bad):
            return (
                f"No other message of {task} has ended {when}{under}: the journal cannot tell its code from"
                " its data."
            )
        needed = ", ".join(self.needed)
        well = f"{self.well or 'none'} ended well{f' (at most {needed})' if needed else ''}"
        return f"Others of {task} {when}{under}: {', '.join([well, *bad])}. {self._hint}"

    @property
    def _hint(self) -> str:
        bad = self.raised + self.died + self.cut_off
        if not self.well:
            return "Look at its code first, or at what it needs."
        if bad > self.well:
            return "Most fail: look at its code first, or at what it needs."
        return "Its code works for others: look at the data of this message first."

    @property
    def needed(self) -> list[str]:
        """The most time and memory that one of those took that ended well, in words."""
        words = [run_time(self.longest_ms)] if self.longest_ms is not None else []
        return words + ([f"{self.most_kb / 1024:,.0f} MiB"] if self.most_kb else [])


def run_time(ms: int) -> str:
    """Return how long a run took, for people."""
    return f"{ms} ms" if ms < 950 else span_in_two(ms / 1000)


def others_of(queries: Views, record: MessageRecord, history: Iterable[Mapping[str, str]]) -> Others | None:
    """Return the ends of others; None where the message died of nothing, or has been given up.

    Args:
        history: entries of the journal about the message, oldest first.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    if (
        not record.task
        or record.state == State.FAIL
        or not (record.crashes or record.failures or record.cause == causes.FAILURE)
    ):
        return None
    now = queries.now_ms() / 1000
    deaths = [entry for entry in history if entry.get("event") == Event.CRASHED]
    at = record.quarantined_at or record.last_seen or now
    if deaths:
        at = int(deaths[-1]["at"].partition("-")[0]) / 1000
    until = min(now, at + _AFTER)
    entries, since = queries.journal_of_task(record.task, max(0.0, at - _BEFORE), until, **_BOUNDS)
    version = deaths[-1].get("release", "") if deaths else ""
    counted = _counted(entries, record.id, version)
    is_told = counted["well"] or counted["raised"] or counted["cut_off"]  # deaths are always journaled
    ever = 0 if is_told else queries.ended_runs(record.task)
    return Others(
        task=record.task, since=since, until=until, is_now=until == now, version=version, ever=ever, **counted
    )


def _counted(entries: Iterable[Mapping[str, str]], id: str, version: str) -> dict[str, Any]:
    """Return the counts of messages by their ends, and the most that a run took; by the names of fields."""
    ends: dict[str, set[str]] = {"well": set(), "raised": set(), "died": set(), "cut_off": set()}
    times, memory = list[int](), list[int]()
    for entry in entries:
        if entry["id"] == id or (version and entry["release"] not in ("", version)):
            continue
        event, outcome = entry["event"], entry["outcome"]
        if event == Event.CRASHED and entry["cause"] not in causes.OF_WORKERS:
            ends["died"].add(entry["id"])
        elif event == Event.FINISHED and outcome in _WELL:
            ends["well"].add(entry["id"])
            times += [whole(entry["runtime_ms"])] if entry["runtime_ms"] else []
            memory += [whole(entry["run_memory_kb"])]
        elif event == Event.FINISHED and outcome in _BAD:
            ends[_BAD[outcome]].add(entry["id"])
    counts = {name: len(ids) for name, ids in ends.items()}
    return {**counts, "longest_ms": max(times, default=None), "most_kb": max(memory, default=None)}
