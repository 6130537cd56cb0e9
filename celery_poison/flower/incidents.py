"""Deaths of workers: which, who was running, what became of them, how long it took; and a picture of them.

The picture is an SVG that needs no script; the table beside it says the same in words.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from celery_poison.flower import words
from celery_poison.flower.ledger import AsyncLedger
from celery_poison.model import Incident
from celery_poison.quarantine import story

#: Word in the address -> seconds that the picture spans.
SPANS = {"1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600, "7d": 7 * 24 * 3600}
#: Incidents that are shown, and journal entries that are read to tell about them.
SHOWN, READ = 200, 10_000
#: Messages that are named with one incident.
_NAMED = 20
#: What the journal says of a message that was running -> the verdict on it.
_VERDICTS = {
    "quarantined": "convicted",
    "crashed": "suspected",
    "interrupted": "not to blame",
    "cleared": "cleared",
}
#: Verdicts that may come later, of a trial that is not filed under the incident.
_LATER = ("quarantined", "cleared")
#: How a death was noticed -> what a person is told that it was noticed by.
_NOTICED = {"gone": "lost connections", "silent": "silence", "frozen": "silence, still connected"}
#: Kind of a death -> its name in the legend; one bar stacks them in this order.
KINDS = {
    "worker": "worker died",
    "convicted": "worker died, message convicted",
    "open": "recovery goes on",
    "process": "pool process died",
}
_HEIGHT, _LEFT, _BOTTOM, _TOP = 200, 40, 26, 12
#: Name -> width in units, bars, intervals of the time axis. The style sheet shows the one that fits.
_SIZES = {"wide": (960, 60, 6), "narrow": (340, 24, 2)}


class Suspect(NamedTuple):
    """A message that was running when a worker died."""

    mid: str
    task: str
    verdict: str
    sentence: str


class Death(NamedTuple):
    """One incident, worded, with the messages that were running; ``kind``: one of :data:`KINDS`."""

    incident: Incident
    kind: str
    took: str
    noticed: str
    evidence: str
    put_back: str
    suspects: list[Suspect]
    unnamed: int


class Seen(NamedTuple):
    """What the page shows; ``slowest``: seconds of the longest recovery."""

    deaths: list[Death]
    processes: int
    pictures: list[str]
    slowest: float | None


def read(ledger: AsyncLedger, word: str) -> Seen:
    """Read the newest incidents, and what the journal says of them.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    queries = ledger.quarantine.queries
    now = queries.now_ms() / 1000
    journal = queries.journal(count=READ)
    judged = [entry for entry in journal if entry["mid"] and entry["event"] in _VERDICTS]
    deaths = [_death(incident, judged) for incident in queries.incidents(SHOWN)]
    alone = [words.at(entry) for entry in journal if entry["event"] == "crashed" and not entry["incident"]]
    marks = [(death.incident.died_at or 0.0, death.kind) for death in deaths]
    marks += [(moment, "process") for moment in alone]
    took = [death.incident.took for death in deaths if death.incident.took is not None]
    return Seen(deaths, len(alone), draw(marks, now - SPANS[word], now), max(took, default=None))


def _death(incident: Incident, judged: Sequence[Mapping[str, str]]) -> Death:
    suspects: dict[str, Suspect] = {}
    for entry in judged:
        known, verdict = suspects.get(entry["mid"]), _VERDICTS[entry["event"]]
        tried = known is not None and known.verdict == "suspected" and entry["event"] in _LATER
        if tried or entry["incident"] == incident.incident:
            # The last word counts.
            sentence = words.say(story.sentence(entry), 400)
            suspects[entry["mid"]] = Suspect(entry["mid"], entry["task"], verdict, sentence)
    named, took = [*suspects.values()][:_NAMED], incident.took
    is_convicted = any(each.verdict == "convicted" for each in named)
    by_queue = ", ".join(f"{words.say(queue)}: {n}" for queue, n in incident.returned.items())
    return Death(
        incident,
        kind="open" if took is None else "convicted" if is_convicted else "worker",
        took=f"{took:.1f} s" if took is not None else "still going on",
        noticed=_NOTICED.get(incident.how) or words.say(incident.how) or "–",
        evidence=words.say(incident.evidence.sentence(), 1000),
        put_back=by_queue or str(incident.put_back),
        suspects=named,
        unnamed=len(suspects) - len(named),
    )


# --- the picture -------------------------------------------------------------------------------


def draw(marks: Sequence[tuple[float, str]], since: float, now: float) -> list[str]:
    """Return pictures of the deaths, each (moment, kind), between two moments: wide, and for a phone."""
    shown = [mark for mark in marks if mark[0] >= since]
    return [_Picture(name, shown, since, now).svg() for name in _SIZES]


class _Picture:
    def __init__(self, name: str, marks: Sequence[tuple[float, str]], since: float, now: float) -> None:
        self._name, self._since, self._now = name, since, now
        self._width, self._buckets, self._ticks = _SIZES[name]
        share = self._buckets / (now - since)
        last = self._buckets - 1
        self._bars = Counter((min(last, int((at - since) * share)), kind) for at, kind in marks)
        totals = Counter[int]()
        for (bucket, _), count in self._bars.items():
            totals[bucket] += count
        self._top = max([*totals.values(), 4])

    def svg(self) -> str:
        total = sum(self._bars.values())
        label = f"{total} deaths between {self._clock(self._since)} and {self._clock(self._now)}"
        return (
            f'<svg class="poison-picture {self._name}" viewBox="0 0 {self._width} {_HEIGHT}" role="img"'
            f' aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">'
            f"{''.join((*self._frame(), *self._stacks()))}</svg>"
        )

    def _y(self, count: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - count / self._top)

    def _frame(self) -> Iterator[str]:
        for count in range(0, self._top + 1, max(1, math.ceil(self._top / 4))):
            y = self._y(count)
            yield f'<line class="grid" x1="{_LEFT}" x2="{self._width}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count}</text>'
        for tick in range(self._ticks + 1):
            share = tick / self._ticks
            x, at = _LEFT + (self._width - _LEFT) * share, self._since + (self._now - self._since) * share
            anchor = "start" if tick == 0 else "end" if tick == self._ticks else "middle"
            place = f'x="{x:.0f}" y="{_HEIGHT - 6}" text-anchor="{anchor}"'
            yield f'<text class="axis" {place}>{self._clock(at)}</text>'

    def _stacks(self) -> Iterator[str]:
        width = (self._width - _LEFT) / self._buckets
        heights = Counter[int]()
        for kind, name in KINDS.items():
            for bucket in range(self._buckets):
                if count := self._bars[bucket, kind]:
                    y = self._y(heights[bucket] + count)
                    height = self._y(heights[bucket]) - y
                    heights[bucket] += count
                    x, told = _LEFT + bucket * width + 1, f"<title>{count} × {name}</title>"
                    size = f'width="{width - 2:.1f}" height="{height:.1f}"'
                    yield f'<rect class="bar {kind}" x="{x:.1f}" y="{y:.1f}" {size}>{told}</rect>'

    def _clock(self, at: float) -> str:
        day = "" if self._now - self._since < 20 * 3600 else "%d %b "
        return time.strftime(f"{day}%H:%M", time.localtime(at))
