"""The death of a worker as lanes: what each of its slots ran, and what then became of the message.

A trial is not filed under the death, and its beginning has no entry: it is its end less its runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from celery_poison.basics.numbers import whole
from celery_poison.basics.text import clean, clock, short
from celery_poison.causes import NO_CONVICTIONS
from celery_poison.ledger.fleet_model import Incident
from celery_poison.ledger.views import Views
from celery_poison.states import Event, State

#: Entries of one death that are read.
_ENTRIES = 1000
#: The start of a message ended so; while its worker lived, that was a trial.
_ENDS = (Event.CRASHED, "interrupted", Event.ROLLED_BACK, Event.FINISHED)
#: The end of a run that counts against no message.
INTERRUPTED = "was interrupted"
#: With these a lane ends; what a person decides later is told by the message itself.
_VERDICTS: Mapping[str, str] = {Event.CLEARED: "cleared", Event.WOULD_QUARANTINE: "would be convicted"}


@dataclass(frozen=True)
class LaneStep:
    """One event of a message after the death, by Redis' clock; ``until``: a trial's end."""

    word: str
    at: float
    until: float | None = None


@dataclass
class IncidentLane:
    """One slot of a worker when it died.

    Attributes:
        pid: its process; empty: unknown.
        began: when its message had begun to run, in seconds of Redis' clock; None: the journal does not say.
        ran: seconds from there to the last sign of life; 0: it began after that, or that is not known.
        end: how the run ended; empty: the journal has lost that entry.
    """

    mid: str
    id: str
    task: str
    token: str
    pid: str = ""
    began: float | None = None
    ran: float = 0.0
    end: str = ""
    steps: list[LaneStep] = field(default_factory=list)
    is_judged: bool = False

    @property
    def name(self) -> str:
        return clean(f"{self.task}[{short(self.id)}]")

    @property
    def run(self) -> str:
        """The run and its end, in words."""
        if not self.end:
            return "its run is no longer in the journal"
        return f"ran{f' at least {self.ran:.1f} s' if self.ran else ''}, {self.end}"

    @property
    def sentence(self) -> str:
        steps = [f"{step.word} {clock(step.at)}" for step in self.steps]
        if not self.is_judged:
            steps.append("no verdict in the journal")
        return f"{self.run}; {', '.join(steps)}"


def lanes(entries: Iterable[Mapping[str, str]], incident: str, heard: float) -> list[IncidentLane]:
    """Return the lanes of one death, in the order in which their messages had begun.

    Args:
        entries: of the journal, oldest first; those about other deaths and messages are passed over.
        heard: the worker's last sign of life, where runtimes end, in seconds.
    """
    found: dict[str, IncidentLane] = {}
    for entry in entries:
        mid, event = entry["mid"], entry["event"]
        if mid not in found:
            if not mid or entry["incident"] != incident:
                continue
            found[mid] = IncidentLane(mid, entry["id"], entry["task"], entry["token"], entry["pid"])
            if event in (Event.CRASHED, "interrupted"):
                _begin(found[mid], entry, heard)
                continue
        if not found[mid].is_judged:
            _go_on(found[mid], entry)
    return sorted(found.values(), key=lambda lane: lane.began or 0.0)


def _begin(lane: IncidentLane, entry: Mapping[str, str], heard: float) -> None:
    lane.end = "died" if entry["event"] == Event.CRASHED else INTERRUPTED
    ran = _ran(entry)
    if ran is not None or whole(
        entry["pid"]
    ):  # a process, and no time: it began after its worker was heard of
        lane.ran, lane.began = ran or 0.0, heard - (ran or 0.0)
    lane.steps.append(LaneStep("put back" if entry["state"] == State.TBDL else "only observed", _at(entry)))


def _go_on(lane: IncidentLane, entry: Mapping[str, str]) -> None:
    event, at = entry["event"], _at(entry)
    if event in _ENDS and entry["incident"]:
        lane.steps.append(LaneStep("ran at another death", at))
    elif event in _ENDS and (ran := _ran(entry)) is not None:
        lane.steps.append(LaneStep("tried", at - ran, at))
        lane.is_judged = lane.end == INTERRUPTED and event == Event.FINISHED  # it was no suspect
    elif event == Event.QUARANTINED:
        lane.steps.append(LaneStep("kept" if entry["cause"] in NO_CONVICTIONS else "convicted", at))
        lane.is_judged = True
    elif event in _VERDICTS:
        lane.steps.append(LaneStep(_VERDICTS[event], at))
        lane.is_judged = True


def read(queries: Views, incident: Incident) -> tuple[Sequence[Mapping[str, str]], list[IncidentLane]]:
    """Return the journal's entries of a death, and its lanes.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    # The journal names it once it is known: some entries are as old as the last sign of life.
    since = max(0.0, (incident.last_beat or incident.died_at or 0.0) - 1)
    own = queries.journal(
        count=_ENTRIES, wanted=lambda each: each["incident"] == incident.incident, since=since
    )
    mids = {entry["mid"] for entry in own if entry["mid"]}
    told = own
    if mids:
        told = queries.journal(count=10 * _ENTRIES, wanted=lambda each: each["mid"] in mids, since=since)
    return own, lanes(told, incident.incident, incident.died_at or since)


def is_whole(own: Sequence[Mapping[str, str]]) -> bool:
    """Whether the journal still has all of a death: what it loses are its oldest entries."""
    return len(own) == _ENTRIES or any(entry["event"] == "worker_lost" for entry in own)


def _at(entry: Mapping[str, str]) -> float:
    return int(entry["at"].partition("-")[0]) / 1000


def _ran(entry: Mapping[str, str]) -> float | None:
    """Return a runtime in seconds; None: it is not known, or no number of years that can be."""
    ran = entry["runtime_ms"]
    return int(ran) / 1000 if ran.isdecimal() and len(ran) < 13 else None
