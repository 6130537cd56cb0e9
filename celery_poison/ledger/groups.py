"""What is alike in quarantine: counted, and found, without looking at each message (``_groups.lua``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.rows import FIRST, Reader
from celery_poison.states import State

#: (mid, ms) of a page of messages.
Index = list[tuple[str, float]]
#: Entries of an index that are read in one exchange with Redis at most.
INDEX_PAGE = 10_000
#: Groups that are looked at in one step of Redis.
_SCANNED = 5000


class GroupKind(StrEnum):
    """The property that a group shares beside task and cause."""

    QUEUE = "queue"
    FINGERPRINT = "fingerprint"


#: Groups of each kind that are counted in one step of Redis.
_COUNTED = {GroupKind.QUEUE: 20_000, GroupKind.FINGERPRINT: 2000}


class Alike(NamedTuple):
    """Messages in quarantine with the same task, cause and queue, or task, cause and fingerprint.

    Attributes:
        messages: how many they are.
        sha: names their sorted set.
        relapsed: those of them that had been released before.
        newest: the mid of the one that came last.
        last_seen: when that was, in ms.
        first_seen: when the one that is in quarantine for longest entered the ledger, in ms.
    """

    task: str
    cause: str
    queue: str
    fingerprint: str
    messages: int
    sha: str
    relapsed: int = 0
    newest: str = ""
    last_seen: float = 0.0
    first_seen: float = 0.0


class Counted(NamedTuple):
    """All that is alike, the largest first.

    Attributes:
        quarantined: messages in quarantine at that moment.
        total: groups that there are; ``groups`` may be some of them.
    """

    quarantined: int
    total: int
    groups: list[Alike]


def index_of(keys: Keys, state: State) -> str:
    """Return the key of the index of what is in quarantine (NDLV) or given up (FAIL)."""
    return keys.quarantine if state is State.NDLV else keys.failed


class Groups(Reader):
    """Reads the groups of messages in quarantine."""

    def alike(self, kind: GroupKind, most: int = 0) -> Counted:
        """Return the largest groups of a kind; 0: all."""
        # Of what is alike in its queue all in one step, so that they can be added up; it is not much.
        size = min(most or _COUNTED[kind], _COUNTED[kind])
        groups = dict[str, Alike]()
        keys, values = [self._keys.quarantine, self._keys.groups], [self._keys.message(""), kind.value, size]
        for first in range(0, most or sys.maxsize, size):
            _, quarantined, total, text = self._read("groups", keys, [*values, first])
            groups |= {group.sha: group for group in _alike(kind, text)}
            if first + size >= total:
                break
        return Counted(quarantined, total, [*groups.values()][: most or None])

    def groups_by_fingerprint(self, pattern: str = "*") -> list[Alike]:
        """Return the groups by fingerprint, by their labels alone.

        Args:
            pattern: of Redis, for the JSON array of task, cause and fingerprint.
        """
        groups, cursor = dict[str, Alike](), b"0"
        while True:
            _, cursor, text = self._read("labels", [self._keys.groups], [cursor, pattern, _SCANNED])
            groups |= {group.sha: group for group in _alike(GroupKind.FINGERPRINT, text)}
            if cursor == b"0":
                return [*groups.values()]

    def members(
        self, shas: Sequence[str], since: float = 0.0, until: float | None = None, oldest_first: bool = False
    ) -> Iterator[Index]:
        """Yield the members of some groups together, in pages, newest or oldest first; as ``pages`` does."""
        keys, size = [self._keys.group(sha) for sha in shas], FIRST
        newest, oldest = "+inf" if until is None else round(until * 1000), round(since * 1000)
        first, last = (oldest, newest) if oldest_first else (newest, oldest)
        while keys:
            words = [first, last, "oldest" if oldest_first else "newest", size]
            flat = json.loads(self._read("merged", keys, words)[1].decode("utf-8", "replace"))
            if not flat:
                return
            yield [*zip(flat[::2], flat[1::2], strict=True)]
            first, size = f"({flat[-1]!r}", min(4 * size, INDEX_PAGE // 4)

    def place(
        self, shas: Sequence[str] | None, state: State, skip: int, oldest_first: bool = False
    ) -> tuple[float, int] | None:
        """Return where that is which so many others precede, without reading those; None: there is no more.

        Args:
            shas: in these groups together; None: in all that is in this state.

        Returns the time, in seconds, and how many of exactly that time precede it.
        """
        keys = [index_of(self._keys, state)] if shas is None else [self._keys.group(sha) for sha in shas]
        words = ["oldest" if oldest_first else "newest", skip]
        code, *place = self._read("place", keys, words) if keys else [b"MISSING"]
        return (int(place[0]) / 1000, int(place[1])) if code == b"OK" else None

    def _read(self, name: str, keys: Sequence[str], values: Sequence[Any]) -> Any:
        with clear_errors("reading groups"):
            return self._script(name)(keys, values)


def _alike(kind: GroupKind, text: bytes) -> Iterator[Alike]:
    """Yield the groups of a text, of a line each; what others wrote between them counts for none."""
    for line in text.splitlines():
        with suppress(ValueError, TypeError, RecursionError):
            labels, messages, sha, *more = json.loads(line.decode("utf-8", "replace"))
            task, cause, third = map(str, labels)
            queue, fingerprint = (third, "") if kind is GroupKind.QUEUE else ("", third)
            yield Alike(task, cause, queue, fingerprint, int(messages), sha, *more)
