"""The mark of a loop: where it is, in a page of memory that outlives its process.

The page is mapped from a file beside the process's crash report. The process writes it by plain stores, which
the kernel keeps whatever ends the process; a number before and after tells a mark that was only half written.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

from celery_poison.basics.frames import FRAMES
from celery_poison.basics.text import clean
from celery_poison.causes import Evidence
from celery_poison.extensions.items.evidence import LoopEvidence

#: At the end of the name of a process's file.
SUFFIX = ".items"
#: Characters of a key that are kept; bytes of the file.
KEY, SIZE = 100, 4096

#: Of the loop: the token of its start, how many items there are (-1: not known), its function and its file.
LOOP = Struct("<q100p100p200p")
#: Of the item: a number, where the loop stands, which item it is (from 1), its key, and the number again.
ITEM = Struct("<QBQ128pQ")
#: Where the latter begins, and its second field.
AT, STANDS_AT = 512, 520
#: Kept of the end of a file's name.
_NAME = 90


class Stands(IntEnum):
    """Where a loop stands; from HANDED_ON on its item is not known."""

    NOWHERE = 0
    IN = 1
    NEXT = 2
    LEFT = 3
    OVER = 4
    HANDED_ON = 16
    KEPT = 17
    ELSEWHERE = 18
    TORN = 19


class Mark(NamedTuple):
    """The mark that a process has left of a loop.

    Attributes:
        items: how many there are; None: not known.
        item: number of the item at which it stands, from 1; where it is between two, of the one before.
        function, file: where the loop is; empty: not to be compared.
    """

    token: str
    items: int | None
    stands: Stands
    item: int
    key: str
    function: str
    file: str

    @classmethod
    def read(cls, page: bytes) -> Self | None:
        """Read a mark; None where there is none, or what stands there is none."""
        if len(page) < SIZE:
            return None
        items, token, function, file = LOOP.unpack_from(page)
        before, stands, item, key, after = ITEM.unpack_from(page, AT)
        with suppress(ValueError):
            where = Stands(stands)
            if where is Stands.NOWHERE:
                return None
            known = where if before == after else Stands.TORN
            told = (each.decode("utf-8", "ignore") for each in (token, key, function, file))
            name, text, function, file = told
            return cls(name, None if items < 0 else items, known, item, text, function, file)
        return None

    def told_of(self, evidence: Evidence, *, hides_key: bool) -> Evidence:
        """Add what the mark says to what is known of its process's end."""
        stands = self.stands
        if stands is Stands.IN and not self.is_in(evidence.stack):
            stands = Stands.ELSEWHERE
        is_known = stands < Stands.HANDED_ON
        loop = LoopEvidence(
            items=self.items,
            item=self.item if is_known else None,
            item_key="" if hides_key or stands not in (Stands.IN, Stands.LEFT) else clean(self.key),
            item_is=stands.name.lower(),
        )
        return evidence.having(loop)

    def is_in(self, stack: tuple[str, ...]) -> bool:
        """Whether the calls of a crash may be below the loop's; what is cut off or not told may."""
        if not self.function or not stack or len(stack) >= FRAMES:
            return True
        file = f"{self.file}:"
        return any(call.startswith(f"{self.function} (") and file in call for call in stack)


class MarkPage:
    """The page of this process.

    Attributes:
        memory: a child of this process writes into its own.
        number: of the last mark.
        token: of the start to which the mark belongs.
        loop: the loop that it follows at this moment.
    """

    def __init__(self, directory: str) -> None:
        self.memory: mmap.mmap | bytearray = _mapped(Path(directory, f"{os.getpid()}{SUFFIX}"))
        self.number = 0
        self.token = ""
        self.loop: object = None
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        self.memory = bytearray(SIZE)

    def begin(self, token: str, items: int, function: str = "", file: str = "") -> None:
        """Write down which loop begins; nothing counts until its first item, or what is said of it."""
        self.memory[STANDS_AT] = Stands.NOWHERE
        self.token = token
        names = (each.encode("ascii", "ignore") for each in (function, file[-_NAME:]))
        is_told = function.isascii() and file.isascii() and len(function) < _NAME
        LOOP.pack_into(self.memory, 0, items, token.encode(), *(names if is_told else (b"", b"")))

    def say(self, stands: Stands, item: int = 0) -> None:
        """Write down where the loop stands, without a key."""
        self.number += 1
        ITEM.pack_into(self.memory, AT, self.number, stands, item, b"", self.number)


def _mapped(path: Path) -> mmap.mmap:
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(opened, 0, SIZE)  # else a full disk would end the task by SIGBUS
        return mmap.mmap(opened, SIZE)
    finally:
        os.close(opened)


def find(directory: str, token: str) -> Mark | None:
    """Return the mark of a start whose process may still live; None where there is none.

    A loop that goes on meanwhile is not known: its mark must stand still.
    """
    for file in Path(directory).glob(f"*{SUFFIX}"):
        with suppress(OSError):
            page = file.read_bytes()
            mark = Mark.read(page)
            if mark is not None and mark.token == token:
                return mark if file.read_bytes() == page else mark._replace(stands=Stands.TORN)
    return None


def take(directory: str, pid: int) -> Mark | None:
    """Return the mark of a process that has ended, and forget it."""
    file = Path(directory, f"{pid}{SUFFIX}")
    with suppress(FileNotFoundError):
        page = file.read_bytes()
        file.unlink()
        return Mark.read(page)
    return None
