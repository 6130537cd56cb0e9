"""Which policy was in force when, for which task: what the journal tells of its changes (NEW-7).

What the code and the settings say is not in the journal: the back-test is given it, or takes the defaults.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from celery_poison.model import Limits
from celery_poison.policy import EVERY_TASK, OVERRIDABLE


class InForce(NamedTuple):
    """What decided about a message; the names are those of the settings, without their prefix."""

    max_crashes: int = 2
    max_failures: int = 5
    max_payload_bytes: int | None = None
    block_fingerprint_after: int | None = None
    trial: bool = True

    @property
    def limits(self) -> Limits:
        return Limits(self.max_crashes, self.max_failures, self.max_payload_bytes, self.trial)


#: What the settings are where nobody changed them.
DEFAULTS = InForce()
_SET = re.compile(r"(\w+)=(none|\d+)")
_OF_PROPOSAL = re.compile(r": proposal \d+$")
_TAKEN_BACK = "as it was before"


class Timeline:
    """Policies over time.

    Args:
        changes: ``policy_changed`` entries of the journal, by time: milliseconds since 1970, task, note.
        settings: what held before anybody changed it, and holds for what nobody did.
    """

    def __init__(self, changes: Iterable[tuple[int, str, str]] = (), settings: InForce = DEFAULTS) -> None:
        self._settings = settings
        self._times: list[int] = []
        #: Overrides by task, after each change; the first before any.
        self._states: list[Mapping[str, Mapping[str, Any]]] = [{}]
        self._known: dict[tuple[int, str], InForce] = {}
        before: Mapping[str, Any] = {}
        for at, task, note in changes:
            options = self._states[-1].get(task, {})
            if _OF_PROPOSAL.search(note):
                before = options
            told = before if note.startswith(_TAKEN_BACK) else _after(options, note)
            self._times.append(at)
            self._states.append({**self._states[-1], task: told})

    def at(self, ms: int, task: str) -> InForce:
        """Return what held for ``task`` at a moment: its own override goes before that of every task."""
        number = bisect_right(self._times, ms)
        if (number, task) not in self._known:
            state = self._states[number]
            own = {**state.get(EVERY_TASK, {}), **state.get(task, {})}
            self._known[number, task] = self._settings._replace(**own)
        return self._known[number, task]

    def last(self) -> InForce:
        """Return what holds now for every task without an override of its own."""
        return self._settings._replace(**self._states[-1].get(EVERY_TASK, {}))


def _after(options: Mapping[str, Any], note: str) -> Mapping[str, Any]:
    """Return a task's overrides after a change; what a newer release may have written is left out."""
    verb, _, rest = note.partition(": ")[0].partition(" ")
    if verb == "unset":
        gone = OVERRIDABLE if rest == "everything" else rest.split()
        return {name: value for name, value in options.items() if name not in gone}
    found = {name: None if value == "none" else int(value) for name, value in _SET.findall(rest)}
    return {**options, **{name: value for name, value in found.items() if name in OVERRIDABLE}}
