"""The story of one message: what was done to the fleet, to it, and by whom, in the order of the time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from celery_poison.chaos.runs import Facts
from celery_poison.chaos.tasklog import Line

#: Seconds of faults that are told before and after what happened to the message.
BEFORE, AFTER = 5.0, 20.0
_TOLD = ("event", "token", "worker", "state", "cause", "outcome", "deliveries", "strikes", "note")


def story(
    id: str, facts: Facts, lines: Iterable[Line], journal: Iterable[dict[str, str]], ahead: float, logs: str
) -> list[str]:
    """Return one line for each thing that is known of a message.

    Args:
        ahead: seconds by which the wall clock, which the journal goes by, is ahead of the monotonic one.
        logs: of all workers.
    """
    told = [*_own(id, facts, lines), *_recorded(id, journal, ahead)]
    if not told:
        return [f"nobody has ever heard of {id}"]
    first, last = min(told)[0] - BEFORE, max(told)[0] + AFTER
    told += [
        (blow.began, f"FAULT {blow.name} {' '.join(blow.lives)} {blow.note} ({blow.seconds:.1f} s)")
        for blow in facts.blows
        if blow.began <= last and blow.ended >= first
    ]
    begin = facts.sent[id].at if id in facts.sent else first
    said = [f"  log     {line}" for line in logs.splitlines() if re.search(rf"\[{re.escape(id)}\]", line)]
    found = [f"{at - begin:+8.2f} s  {text}" for at, text in sorted(told)]
    return [*found, *said, *(f"  left in {place}" for place in facts.traces.get(id, ()))]


def _own(id: str, facts: Facts, lines: Iterable[Line]) -> Iterator[tuple[float, str]]:
    if sent := facts.sent.get(id):
        yield sent.at, f"sent ({sent.kind})"
    for line in lines:
        if line.id == id and line.event != "step":
            trial = " on trial" if line.on_trial else ""
            yield line.at, f"{line.event} in {line.life}, process {line.pid}{trial}"


def _recorded(id: str, journal: Iterable[dict[str, str]], ahead: float) -> Iterator[tuple[float, str]]:
    for entry in journal:
        if entry["id"] == id:
            words = " ".join(f"{name}={entry[name]}" for name in _TOLD if entry.get(name))
            yield recorded_at(entry) - ahead, f"journal: {words}"


def recorded_at(entry: dict[str, str]) -> float:
    """Return when a journal entry was made, in seconds since 1970."""
    return int(entry["at"].partition("-")[0]) / 1000
