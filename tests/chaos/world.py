"""Facts made by hand, for a judge who must not know that they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from tests.chaos.runs import Blow, Facts, Line, Run, Sent, runs_of

_names = count(1)


def run(id: str, begin: float, end: float | None, life: str = "w1/1", **more: object) -> Run:
    """A run that was seen at work until its end, or for a second; every one in a process of its own."""
    last = begin + 1 if end is None else end
    made = Run(id, life, next(_names), False, begin, last, end)
    return replace(made, **more)  # type: ignore[arg-type]


def kill(id: str, at: float, life: str = "w1/1", **more: object) -> Run:
    """A run of a poison, which was deadly at that moment."""
    return run(id, at - 0.1, None, life, **{"last": at, "kill": at, **more})


def facts(*runs: Run, blows: tuple[Blow, ...] = (), **more: object) -> Facts:
    """The facts of these runs. Every message was sent a second before its first run, and is healthy,
    unless it is deadly; what is deadly was convicted."""
    made: dict[str, list[Run]] = {}
    for one in sorted(runs, key=lambda one: one.begin):
        made.setdefault(one.id, []).append(one)
    deadly = {one.id for one in runs if one.kill is not None}
    sent = {
        id: Sent("segv" if id in deadly else "healthy", of_it[0].begin - 1, True)
        for id, of_it in made.items()
    }
    found = Facts(sent, made, list(blows), convicted=dict.fromkeys(deadly, 0.0))
    return replace(found, **more)  # type: ignore[arg-type]


def lines_of(id: str, name: str, life: str, *moments: float, end: bool = True) -> list[Line]:
    """The lines that one run writes at these moments."""
    events = ["begin", *("step" for _ in moments[1:-1]), "end" if end else "step"]
    return [Line(event, id, name, life, 1, False, at) for event, at in zip(events, moments, strict=True)]


def from_log(*lines: Line) -> Facts:
    """The facts of a task log, all of whose messages were sent when it began."""
    ids = {line.id for line in lines}
    return Facts({id: Sent("healthy", 0.0, True) for id in ids}, runs_of(lines), [])
