"""Deaths of workers: which, who was running, what became of them, how long it took; and a picture of them.

The picture is an SVG that needs no script; the table beside it says the same in words.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from celery_poison.basics.text import count_of
from celery_poison.desk import sentences
from celery_poison.desk.evidence import additions_of, died_when, sentence_of
from celery_poison.flower import words
from celery_poison.flower.async_ledger import AsyncLedger
from celery_poison.flower.picture import LEFT, Frame, Picture
from celery_poison.ledger.fleet_model import Incident

#: Word in the address -> seconds that the picture spans.
SPANS = {"1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600, "7d": 7 * 24 * 3600}
#: Incidents that are shown, and journal entries that are read to tell about them.
INCIDENTS_SHOWN, ENTRIES_READ = 200, 10_000
#: Messages that are named with one incident.
_MESSAGES_NAMED = 20
#: What the journal says of a message that was running -> the verdict on it.
_VERDICTS = {
    "quarantined": "convicted",
    "crashed": "suspected",
    "interrupted": "not to blame",
    "cleared": "cleared",
}
#: Verdicts that may come later, of a trial that is not filed under the incident.
_LATER = ("quarantined", "cleared")
#: How a death was noticed -> the same in words for a person.
_NOTICED = {"gone": "lost connections", "silent": "silence", "frozen": "silence, still connected"}
#: Kind of a worker's death -> its name in the legend; one bar stacks them in this order.
KINDS = {
    "worker": "worker died",
    "convicted": "worker died, message convicted",
    "open": "recovery goes on",
}
#: Pool processes die more often: in a picture of their own they hide no worker.
PROCESSES = {"process": "pool process died"}
#: Each with the intervals of its time axis.
_PICTURES = (
    (Frame("wide", 960, 150, top=12, bottom=26, columns=60), 6),
    (Frame("narrow", 340, 150, top=12, bottom=26, columns=24), 2),
)


class Suspect(NamedTuple):
    """A message that was running when a worker died."""

    mid: str
    task: str
    verdict: str
    sentence: str


class WorkerDeath(NamedTuple):
    """One incident, worded, with the messages that were running; ``kind``: one of :data:`KINDS`."""

    incident: Incident
    kind: str
    took: str
    noticed: str
    evidence: str
    additions: str
    put_back: str
    suspects: list[Suspect]
    unnamed: int

    @property
    def died(self) -> str:
        """When its worker died, as far as it is known."""
        return words.say(died_when(self.incident.evidence)).removeprefix("at ")


class IncidentsShown(NamedTuple):
    """The content of the page.

    Attributes:
        pictures: (legend, wide and narrow picture): of workers, and of pool processes, where any has died.
        span: one of :data:`SPANS`.
        slowest: seconds of the longest recovery.
    """

    deaths: list[WorkerDeath]
    processes: int
    pictures: list[tuple[Mapping[str, str], list[str]]]
    span: str
    slowest: float | None


def read(ledger: AsyncLedger, word: str) -> IncidentsShown:
    """Read the newest incidents, and what the journal says of them.

    Args:
        word: one of :data:`SPANS`; anything else: the shortest that holds all deaths.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    queries = ledger.quarantine.queries
    now = queries.now_ms() / 1000
    journal = queries.journal(count=ENTRIES_READ)
    judged = [entry for entry in journal if entry["mid"] and entry["event"] in _VERDICTS]
    incidents = queries.incidents(INCIDENTS_SHOWN)
    notes = ledger.quarantine.incident_notes([incident.incident for incident in incidents])
    deaths = [_death(incident, judged, notes.get(incident.incident, "")) for incident in incidents]
    alone = [words.at(entry) for entry in journal if entry["event"] == "crashed" and not entry["incident"]]
    marks = [(death.incident.died_at or 0.0, death.kind) for death in deaths]
    processes = [(moment, "process") for moment in alone]
    span = word if word in SPANS else shortest([at for at, _ in (*marks, *processes)], now)
    drawn: list[tuple[Mapping[str, str], list[tuple[float, str]]]] = [(KINDS, marks), (PROCESSES, processes)]
    # Without any death the picture of workers is shown, which says that there was none.
    drawn = [each for each in drawn if each[1]] or drawn[:1]
    pictures = [(kinds, draw(kinds, died, now - SPANS[span], now)) for kinds, died in drawn]
    took = [death.incident.took for death in deaths if death.incident.took is not None]
    return IncidentsShown(deaths, len(alone), pictures, span, max(took, default=None))


def shortest(moments: Sequence[float], now: float) -> str:
    """Return the shortest span that holds all of these moments, else the longest; a day for none."""
    if not moments:
        return "24h"
    return next((word for word, span in SPANS.items() if now - min(moments) < span), [*SPANS][-1])


def _death(incident: Incident, judged: Sequence[Mapping[str, str]], note: str) -> WorkerDeath:
    suspects: dict[str, Suspect] = {}
    for entry in judged:
        suspect, verdict = suspects.get(entry["mid"]), _VERDICTS[entry["event"]]
        tried = suspect is not None and suspect.verdict == "suspected" and entry["event"] in _LATER
        if tried or entry["incident"] == incident.incident:
            # The last word counts.
            sentence = words.say(sentences.sentence(entry), 400)
            suspects[entry["mid"]] = Suspect(entry["mid"], entry["task"], verdict, sentence)
    named, took = [*suspects.values()][:_MESSAGES_NAMED], incident.took
    is_convicted = any(each.verdict == "convicted" for each in named)
    by_queue = ", ".join(f"{words.say(queue)}: {n}" for queue, n in incident.returned.items())
    return WorkerDeath(
        incident,
        kind="open" if took is None else "convicted" if is_convicted else "worker",
        took=f"{took:.1f} s" if took is not None else "still going on",
        noticed=_NOTICED.get(incident.how) or words.say(incident.how) or "–",
        evidence=words.say(sentence_of(incident.evidence), 1000),
        additions=words.say(" ".join(filter(None, (additions_of(incident.evidence), note))), 400),
        put_back=by_queue or str(incident.put_back),
        suspects=named,
        unnamed=len(suspects) - len(named),
    )


# --- the picture -------------------------------------------------------------------------------


def draw(kinds: Mapping[str, str], marks: Sequence[tuple[float, str]], since: float, now: float) -> list[str]:
    """Return pictures of the deaths, each (moment, kind), between two moments: wide, and for a phone."""
    shown = [mark for mark in marks if mark[0] >= since]
    return [_IncidentsPicture(frame, ticks, shown, since, now).draw(kinds) for frame, ticks in _PICTURES]


class _IncidentsPicture(Picture):
    """Args: ``frame``; ``ticks``: intervals of the time axis; the rest as of :func:`draw`."""

    def __init__(
        self, frame: Frame, ticks: int, marks: Sequence[tuple[float, str]], since: float, now: float
    ) -> None:
        share, last = frame.columns / (now - since), frame.columns - 1
        super().__init__(frame, Counter((min(last, int((at - since) * share)), kind) for at, kind in marks))
        self._ticks, self._since, self._now = ticks, since, now

    def draw(self, kinds: Mapping[str, str]) -> str:
        between = f"{self._clock(self._since)} and {self._clock(self._now)}"
        return self.svg(
            f"{count_of(self.bars.total(), 'death')} between {between}",
            self._times(),
            self.stacks(kinds, inset=1),
        )

    def _times(self) -> Iterator[str]:
        for tick in range(self._ticks + 1):
            share = tick / self._ticks
            x, at = LEFT + (self.frame.width - LEFT) * share, self._since + (self._now - self._since) * share
            anchor = "start" if tick == 0 else "end" if tick == self._ticks else "middle"
            yield self.date(x, anchor, self._clock(at))

    def _clock(self, at: float) -> str:
        day = "" if self._now - self._since < 20 * 3600 else "%d %b "
        return time.strftime(f"{day}%H:%M", time.localtime(at))
