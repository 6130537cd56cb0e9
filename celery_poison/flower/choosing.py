"""What may be done, and to which messages: acts, and lists as addresses and forms name them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Self
from urllib.parse import urlencode

from celery_poison.desk import Quarantine
from celery_poison.desk.care import BadCare, seconds_of
from celery_poison.desk.decisions import Chosen
from celery_poison.desk.finder import Found
from celery_poison.desk.lookup import Lookup
from celery_poison.desk.search import Filter, Group
from celery_poison.errors import PoisonError
from celery_poison.model import MessageRecord
from celery_poison.states import State

#: Word in the address -> its tab.
TABS = {
    "NDLV": "In quarantine",
    "candidates": "Candidates",
    "DLNG": "Running",
    "TBDL": "Waiting",
    "FAIL": "Given up",
}


@dataclass(frozen=True, slots=True)
class MessageAct:
    """One act on messages in quarantine.

    Attributes:
        verb: its method of ``Quarantine``, and its word in addresses.
        story: one sentence about what it does.
        choices: name -> sentence, of what may be switched on.
        asks: name -> sentence, of what is typed.
        states: where a message may be for it.
    """

    verb: str
    story: str
    choices: Mapping[str, str] = field(default_factory=dict)
    asks: Mapping[str, str] = field(default_factory=dict)
    states: frozenset[State] = frozenset({State.NDLV})

    @property
    def label(self) -> str:
        return self.verb.capitalize()


_FORCED_RELEASE = "release even if no task of that name is registered in this app, or its chord has expired."
_RUN_AGAIN = "yes, run again also what has begun once and must not run twice (rerun=False)."
_FORCED_FAIL = (
    "fail it even if its body is not JSON: then its own caller hears of it, its chord, chain and errbacks"
    " do not."
)
ACTIONS = {
    action.verb: action
    for action in (
        MessageAct(
            "release",
            "Publish the stored originals to their own queues. Each runs alone, and one more death brings it"
            " straight back.",
            {
                "force": _FORCED_RELEASE,
                "keep_counts": "count its strikes and failures on, not from 0.",
                "keep_expiry": "refuse what has expired: otherwise it leaves without its expiry, and runs.",
                "yes_run_again": _RUN_AGAIN,
            },
        ),
        MessageAct(
            "fail",
            "Give messages up: callers get a failure, unless they have one; chords and errbacks hear of it.",
            {"force": _FORCED_FAIL},
        ),
        MessageAct(
            "discard",
            "Give messages up without a report: callers that wait for their results wait in vain.",
        ),
        MessageAct(
            "schedule",
            "Release messages by themselves, after a pause: for causes that pass. Until then they stay, and a"
            " release, or giving them up, ends it.",
            {"force": _FORCED_RELEASE, "yes_run_again": _RUN_AGAIN},
            {"after": "by itself, after so long: 10m, 1h", "times": "and again when it comes back"},
        ),
        MessageAct(
            "unschedule",
            "Take a scheduled release back: the messages stay until a person decides.",
        ),
    )
}


def scheduled(typed: Mapping[str, str]) -> dict[str, Any]:
    """Return after how many seconds, and how often, as ``schedule`` takes it.

    Args:
        typed: ``after``, and perhaps ``times``: 1 by default.

    Raises:
        BadCare: one of them is no time, or no number above zero.
    """
    times = typed.get("times") or "1"
    if not (times.isascii() and times.isdecimal() and len(times) < 10 and int(times)):
        raise BadCare(f"{times!r}: times is a number above zero")
    return {"after": seconds_of(typed.get("after") or ""), "times": int(times)}


class NothingChosen(PoisonError):
    """An act was asked for without saying on what."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The messages of an act: named one by one, or all that match a filter.

    Attributes:
        until: of those that match, only what came until then, in seconds of Redis' clock: what arrives after
            the person looked was not meant.
    """

    ids: tuple[str, ...] = ()
    everything: bool = False
    text: str = ""
    until: float | None = None

    def check(self) -> None:
        """Refuse a choice of no messages (NothingChosen), and a filter that is none (BadFilter)."""
        if bool(self.ids) == self.everything:
            raise NothingChosen("Say which messages: tick some, or choose everything that matches")
        if self.everything and self.text:
            Filter.search(self.text)

    @property
    def where(self) -> Filter:
        return Filter.search(self.text) if self.text else Filter()

    def find(self, quarantine: Quarantine, sample: int, most: int | None = None) -> Found:
        """Return the newest of those that are meant, and how many they are.

        Args:
            most: messages that are looked at where each has to be; beyond that there may be more. None: all.
        """
        if not self.everything:
            named = Lookup(quarantine.queries).find_each(self.ids)
            kept = [each for each in named if isinstance(each, MessageRecord) and each.state == State.NDLV]
            return Found(kept[:sample], len(kept))
        finder = quarantine.finder
        chosen = finder.choose(State.NDLV, self.where)
        if chosen.is_exact:
            mids = finder.mids(self.where, State.NDLV, chosen, until=self.until)
            newest = [*islice(mids, sample)]
            count = len(newest) + sum(1 for _ in mids) if self.until else chosen.messages
            return Found([*finder.whole(State.NDLV, newest)], count)
        walk = finder.walk(self.where, chosen=chosen, until=self.until, most=most)
        matching = [part.mid for part in walk]
        rows = [*finder.whole(State.NDLV, matching[:sample])]
        return Found(rows, len(matching), not walk.is_over, walk.looked)

    def mids(self, quarantine: Quarantine) -> Sequence[str]:
        """Return the mids of an act, at the moment when it begins."""
        if not self.everything:
            return self.ids
        finder = quarantine.finder
        chosen = finder.choose(State.NDLV, self.where)
        return Chosen.matching(finder.mids(self.where, State.NDLV, chosen, until=self.until), self.text)


@dataclass(frozen=True, slots=True)
class Listing:
    """The choice that a list shows. ``text``: a filter as on the command line, words to search for, or empty.

    Attributes:
        begin: where matches are not counted: from when on it is looked for, in ms; 0: from the first.
    """

    state: str = "NDLV"
    text: str = ""
    offset: int = 0
    oldest_first: bool = False
    begin: int = 0

    @classmethod
    def parse(cls, state: str, text: str, offset: str, order: str, begin: str = "") -> Self:
        """Read an address; what makes no sense there becomes the default."""
        return cls(
            state if state in TABS else "NDLV",
            # What turns or hides text does not get into a search box; in a pattern, ? matches it.
            "".join(letter if letter.isprintable() else "?" for letter in text.strip()),
            int(offset) if offset.isdecimal() and len(offset) < 10 else 0,
            order == "oldest",
            int(begin) if begin.isdecimal() and len(begin) < 15 else 0,
        )

    @classmethod
    def of(cls, state: str = "NDLV", /, **conditions: str) -> Self:
        """Return the list of what is in that state and has exactly these values."""
        return cls(state, " ".join(shlex.quote(f"{name}={_literal(v)}") for name, v in conditions.items()))

    @classmethod
    def of_group(cls, group: Group) -> Self:
        """Return the list of what is in a group."""
        fine = {"fingerprint": group.fingerprint} if group.fingerprint else {}
        return cls.of(task=group.task, cause=group.cause, **fine)

    @property
    def where(self) -> Filter | None:
        """The filter; BadFilter: the text is none."""
        return Filter.search(self.text) if self.text else None

    @property
    def query(self) -> str:
        """The list as the query of an address."""
        words = {
            "state": self.state if self.state != "NDLV" else "",
            "filter": self.text,
            "offset": str(self.offset or ""),
            "order": "oldest" if self.oldest_first else "",
            "begin": str(self.begin or ""),
        }
        return urlencode({name: word for name, word in words.items() if word})

    def at(self, offset: int, begin: int = 0) -> Self:
        return replace(self, offset=max(0, offset), begin=begin)

    def turned(self) -> Self:
        return replace(self, offset=0, begin=0, oldest_first=not self.oldest_first)


def _literal(value: str) -> str:
    """Return a pattern that matches only this value."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in value)
