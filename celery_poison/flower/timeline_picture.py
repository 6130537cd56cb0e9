"""The death of a worker as a picture of its lanes; the sentences beside it say the same.

The left part is the time before the death, the right part the time after: each has a scale of its own: a task
may have run for hours, and is tried within seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from celery_poison.basics.text import clock, count_of
from celery_poison.desk import timeline
from celery_poison.desk.timeline import IncidentLane
from celery_poison.errors import MessageNotFound
from celery_poison.flower import words
from celery_poison.flower.async_ledger import AsyncLedger
from celery_poison.flower.picture import svg
from celery_poison.ledger.fleet_model import Incident

#: Lanes that are drawn and worded; incidents among which one is looked for.
LANES_SHOWN, _SEARCHED = 30, 1000
#: Class of the style sheet -> what it stands for, as in the legend.
KINDS = {
    "process": "ran when its worker died",
    "open": "put back",
    "worker": "tried",
    "cleared": "cleared",
    "convicted": "convicted",
}
#: Name, width, and characters that a lane's name may have.
_PICTURES = (("wide", 960, 110), ("narrow", 340, 44))
#: Units: of a lane, above the first, below the last; the share of the width that is before the death.
_LANE, _TOP, _BOTTOM, _BEFORE = 36, 18, 24, 0.45


class Shown(NamedTuple):
    """The content of the page; ``unnamed``: lanes that are not shown."""

    incident: Incident
    lanes: list[IncidentLane]
    unnamed: int
    is_whole: bool
    pictures: list[str]


def read(ledger: AsyncLedger, id: str) -> Shown:
    """Read one death.

    Raises:
        MessageNotFound: it is not among the newest.
        LedgerUnavailable: Redis is away.
    """
    queries = ledger.quarantine.queries
    incident = next((each for each in queries.incidents(_SEARCHED) if each.incident == id), None)
    if incident is None:
        raise MessageNotFound(f"no incident has that id, of the newest {_SEARCHED:,}")
    entries, lanes = timeline.read(queries, incident)
    shown = lanes[:LANES_SHOWN]
    died = (incident.evidence.by_ms or 0) / 1000 or incident.died_at or 0.0
    return Shown(
        incident,
        shown,
        len(lanes) - len(shown),
        timeline.is_whole(entries),
        draw(shown, died) if shown else [],
    )


def draw(lanes: Sequence[IncidentLane], died: float) -> list[str]:
    """Return pictures of the lanes of a worker that died at that moment: wide, and for a phone."""
    return [_Drawing(width, letters, lanes, died).svg(name) for name, width, letters in _PICTURES]


class _Drawing:
    def __init__(self, width: int, letters: int, lanes: Sequence[IncidentLane], died: float) -> None:
        self._width, self._letters, self._lanes, self._died = width, letters, lanes, died
        self._height = _TOP + _LANE * len(lanes) + _BOTTOM
        self._first = min([lane.began for lane in lanes if lane.began is not None] + [died - 1])
        moments = [step.until or step.at for lane in lanes for step in lane.steps]
        self._last = max([*moments, died + 1])

    def svg(self, name: str) -> str:
        label = f"{count_of(len(self._lanes), 'message')} ran when the worker died; listed below in words"
        drawn = (piece for number, lane in enumerate(self._lanes) for piece in self._lane(number, lane))
        return svg(name, self._width, self._height, label, drawn, self._axis())

    def _x(self, at: float) -> float:
        """Return where a moment is; circles at either end are whole."""
        if at <= self._died:
            share = max(0.0, (at - self._first) / (self._died - self._first)) * _BEFORE
        else:
            share = _BEFORE + (at - self._died) / (self._last - self._died) * (1 - _BEFORE)
        return 6 + (self._width - 12) * share

    def _lane(self, number: int, lane: IncidentLane) -> Iterator[str]:
        top = _TOP + _LANE * number
        name = lane.name if len(lane.name) <= self._letters else f"{lane.name[: self._letters - 1]}…"
        yield f'<text class="lane" x="6" y="{top + 11}">{escape(name)}</text>'
        if lane.began is not None:
            yield self._bar("process", top + 17, lane.began, self._died, f"process {lane.pid}: {lane.run}")
        for step in lane.steps:
            title = f"{step.word} {clock(step.at)}"
            if step.until:
                yield self._bar("worker", top + 17, step.at, step.until, title)
                continue
            kind = step.word if step.word in KINDS.values() else "open"
            kind = "open" if kind == "put back" else kind
            place = f'class="step {kind}" cx="{self._x(step.at):.1f}" cy="{top + 22}" r="5"'
            yield f"<circle {place}><title>{escape(title)}</title></circle>"

    def _bar(self, kind: str, y: int, since: float, until: float, title: str) -> str:
        x = self._x(since)
        size = f'x="{x:.1f}" y="{y}" width="{max(3.0, self._x(until) - x):.1f}" height="10"'
        return f'<rect class="bar {kind}" {size}><title>{escape(words.say(title))}</title></rect>'

    def _axis(self) -> Iterator[str]:
        x, below = self._x(self._died), self._height - _BOTTOM
        yield f'<line class="death" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{below}"/>'
        marks = (
            (6.0, "start", self._first),
            (x, "middle", self._died),
            (self._width - 6.0, "end", self._last),
        )
        for at, anchor, moment in marks:
            died = "died " if anchor == "middle" else ""
            place = f'x="{at:.1f}" y="{self._height - 6}" text-anchor="{anchor}"'
            yield f'<text class="axis" {place}>{died}{clock(moment)}</text>'
