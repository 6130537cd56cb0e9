"""Deaths of workers: which, who was running, what became of them, how long it took; and a picture."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celery_poison.flower import words
from celery_poison.flower.ledger import AsyncLedger
from celery_poison.flower.picture import Mark, draw
from celery_poison.model import Incident
from celery_poison.quarantine import story
from celery_poison.text import duration

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


@dataclass(frozen=True, slots=True)
class Suspect:
    """A message that was running when a worker died."""

    mid: str
    id: str
    task: str
    verdict: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Death:
    """One incident, with the messages that were running."""

    incident: Incident
    suspects: list[Suspect]
    unnamed: int

    @property
    def took(self) -> str:
        return f"{self.incident.took:.1f} s" if self.incident.took is not None else "still going on"

    @property
    def evidence(self) -> str:
        return words.say(self.incident.evidence.sentence(), 1000)

    @property
    def put_back(self) -> str:
        by_queue = ", ".join(f"{words.say(queue)}: {n}" for queue, n in self.incident.returned.items())
        return by_queue or str(self.incident.put_back)

    @property
    def convicted(self) -> bool:
        return any(suspect.verdict == "convicted" for suspect in self.suspects)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the page shows."""

    deaths: list[Death]
    processes: int
    picture: str
    slowest: float | None


def span(word: str) -> str:
    """Return a span that there is."""
    return word if word in SPANS else "24h"


def read(ledger: AsyncLedger, word: str) -> Seen:
    """Read the newest incidents, and what the journal says of them.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    queries = ledger.quarantine.queries
    now = queries.now_ms() / 1000
    journal = queries.journal(count=READ)
    deaths = [_death(incident, journal) for incident in queries.incidents(SHOWN)]
    alone = [entry for entry in journal if entry["event"] == "crashed" and not entry["incident"]]
    since = now - SPANS[word]
    marks = [_mark(death) for death in deaths] + [_process(entry) for entry in alone]
    shown = [mark for mark in marks if mark.at >= since]
    took = [death.incident.took for death in deaths if death.incident.took is not None]
    return Seen(deaths, len(alone), draw(shown, since, now), max(took, default=None))


def _death(incident: Incident, journal: Sequence[Mapping[str, str]]) -> Death:
    suspects: dict[str, Suspect] = {}
    for entry in journal:
        if entry["incident"] == incident.incident and entry["mid"] and entry["event"] in _VERDICTS:
            # The last word counts.
            suspects[entry["mid"]] = Suspect(
                entry["mid"],
                entry["id"],
                entry["task"],
                _VERDICTS[entry["event"]],
                words.say(story.sentence(entry), 400),
            )
    named = [*suspects.values()][:_NAMED]
    return Death(incident, named, len(suspects) - len(named))


def _mark(death: Death) -> Mark:
    incident = death.incident
    label = (
        f"{words.node(incident.worker)} died {_ago(incident.died_at)}: {words.cause(incident)};"
        f" recovery {death.took}; {incident.flagged} flagged"
    )
    kind = "open" if incident.took is None else "convicted" if death.convicted else "worker"
    return Mark(incident.died_at or 0.0, incident.took, kind, label)


def _process(entry: Mapping[str, str]) -> Mark:
    label = f"a process of {words.node(entry['worker'])}: {words.say(entry['task'])} {entry['cause']}"
    return Mark(words.at(entry), None, "process", words.say(label))


def _ago(moment: float | None) -> str:
    return f"{duration(time.time() - moment)} ago" if moment else "at an unknown time"
