"""Follows a loop, in the process that runs it: which item begins is on record before its body runs.

Only a ``for`` statement of a plain function is followed: its items begin and end one after the other there.
Elsewhere (generators, ``list``, ``map``, ``enumerate``) the body may run later than its item is asked for.
Where the body keeps an item, or has begun a thread, it may do so too, and the item is not known any more.
"""

from __future__ import annotations

import sys
from _thread import _count as threads
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from opcode import opmap
from threading import current_thread, main_thread
from types import FrameType
from typing import Generic, TypeVar

from billiard.exceptions import SoftTimeLimitExceeded

from celery_poison.extensions.items.mark_page import AT, ITEM, KEY, STANDS_AT, MarkPage, Stands

T = TypeVar("T")
Key = Callable[[T], object]

#: What may stop within a loop, and go on later.
_PAUSES = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_BEGINS_FOR = opmap["GET_ITER"]
#: What is asked for its length: of others that may cost more than the loop.
_SIZED = (list, tuple, range, dict, set, frozenset, deque)
#: Plain numbers, which are written faster.
_IN, _NEXT = int(Stands.IN), int(Stands.NEXT)
#: So many references has what all of a process share: it does not show by them that one more keeps it.
_SHARED = 1 << 29


class Loop(Generic[T]):
    """An iterator over rows, which a ``for`` statement follows.

    Args:
        key: of an item; None: it has none.
        complain: hears once what the key raised.
    """

    def __init__(
        self,
        page: MarkPage,
        token: str,
        rows: Iterable[T],
        key: Key[T] | None,
        complain: Callable[..., object],
    ) -> None:
        self._page, self._token, self._key, self._complain = page, token, key, complain
        self._rows = iter(rows)
        self._items = len(rows) if isinstance(rows, _SIZED) and type(rows) in _SIZED else -1
        self._is_told = False

    def __iter__(self) -> Iterator[T]:
        frame = sys._getframe(1)
        return self._followed() if frame.f_code.co_code[frame.f_lasti] == _BEGINS_FOR else self

    def __next__(self) -> T:
        if not self._is_told:
            self._is_told = True
            self._not_followed()
        return next(self._rows)

    def _not_followed(self) -> None:
        page = self._page
        if page.token != self._token or page.loop is None:
            page.begin(self._token, self._items)
            page.say(Stands.HANDED_ON)

    def _may_be_followed(self, frame: FrameType) -> bool:
        """Whether this loop is followed; of loops within each other it is the outer one."""
        page = self._page
        if page.token == self._token and page.loop is not None:
            return False
        if frame.f_code.co_flags & _PAUSES or current_thread() is not main_thread():
            self._not_followed()
            return False
        page.begin(self._token, self._items, frame.f_code.co_name, frame.f_code.co_filename)
        page.loop = self
        page.say(Stands.NEXT)
        return True

    def _followed(self) -> Iterator[T]:
        rows, page, key = self._rows, self._page, self._encoded_key
        is_followed = self._may_be_followed(sys._getframe(1))
        write, references, before = ITEM.pack_into, sys.getrefcount, threads()
        item, stands = 0, Stands.LEFT
        try:
            for row in rows:
                if not is_followed:
                    yield row
                    continue
                item += 1
                text = key(row)
                held = references(row)
                is_shared = held > _SHARED or (type(row) is int and -6 < row < 257)  # type: ignore[operator]
                page.number = number = page.number + 1
                write(page.memory, AT, number, _IN, item, text, number)
                yield row
                if (
                    threads() > before
                    or (not is_shared and references(row) > held + 1)
                    or (is_shared and _is_collected(row, sys._getframe(1)))
                ):
                    page.say(Stands.KEPT)
                    is_followed = False
                else:
                    page.memory[STANDS_AT] = _NEXT
            stands = Stands.OVER
        finally:
            if page.loop is self:
                page.loop = None
                if stands is Stands.OVER:
                    page.say(stands, item if is_followed else 0)
                else:  # the item stays what it was
                    page.memory[STANDS_AT] = stands if is_followed else Stands.NOWHERE

    def _encoded_key(self, row: T) -> bytes:
        if self._key is None:
            return b""
        try:
            text = str(self._key(row))
            # Half a surrogate pair is no UTF-8.
            return text[:KEY].encode() if text.isascii() else text[:KEY].encode("utf-8", "replace")
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:
            self._key = None
            self._complain(error)
            return b""


def _is_collected(row: object, frame: FrameType) -> bool:
    """Whether a loop has put a row into a list of its own, as the last one."""
    own = (each for each in frame.f_locals.values() if type(each) in (list, deque))
    return any(each and each[-1] is row for each in own)
