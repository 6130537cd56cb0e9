"""What can be done with messages, found out from the class that does it: no act is written down twice."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

from celery_poison.quarantine import Quarantine
from celery_poison.states import TRANSITIONS, State

#: What every act takes; whatever else has a default is a choice of this act alone.
_COMMON = ("self", "ids", "actor", "note", "on_outcome")


@dataclass(frozen=True, slots=True)
class Action:
    """One act that :class:`Quarantine` offers.

    Attributes:
        verb: its method, and its word in addresses.
        story: one sentence about what it does.
        states: where a message may be for it.
        choices: name -> sentence, of what may be switched on.
    """

    verb: str
    story: str
    states: frozenset[State]
    choices: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.verb.replace("_", " ").capitalize()


def find_actions(of: type = Quarantine) -> dict[str, Action]:
    """Return every public method that acts on ids for somebody, in the order of the class."""
    found = {}
    for verb, method in vars(of).items():
        if verb.startswith("_") or not inspect.isfunction(method):
            continue
        parameters = inspect.signature(method).parameters
        if not set(_COMMON) <= set(parameters):
            continue
        more = [each for name, each in parameters.items() if name not in _COMMON]
        # What cannot do without a further value has a page of its own, or none.
        if all(each.default is not each.empty for each in more):
            choices = {each.name: _told(method, each.name) for each in more if each.default is False}
            story = (inspect.getdoc(method) or verb).partition("\n\n")[0].replace("\n", " ")
            found[verb] = Action(verb, story, _states(verb), choices)
    return found


def _states(verb: str) -> frozenset[State]:
    """Return from where the transition leads whose event is the verb's past: release, released."""
    for states, _, event, _ in TRANSITIONS.values():
        if event is not None and event.startswith(verb):
            return states
    return frozenset({State.NDLV})


def _told(method: object, name: str) -> str:
    """Return what a docstring says about one argument."""
    found = re.search(rf"^ *{name}: (.*(?:\n {{8,}}.*)*)", inspect.getdoc(method) or "", re.MULTILINE)
    return " ".join(found[1].split()) if found else name.replace("_", " ")


ACTIONS = find_actions()
