"""The poison row (NEW-20): at which item of its loop a task died, by ``self.poison.each(rows)``.

``loops`` follows a loop in a process of the pool, or in a cell; ``marks`` is the memory in which it says
where it is, and which the worker reads when the process has ended. It is evidence, and convicts no message.
Where a whole worker dies, no process is left that could read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from celery_poison.basics.parts import Service
from celery_poison.causes import Evidence
from celery_poison.extension import Extension

if TYPE_CHECKING:
    from celery_poison.extensions.items.mark_page import Mark, MarkPage

T = TypeVar("T")

#: Marks of ended processes that are kept until a death is examined.
MOST = 64
#: By this name ``poison_redact`` hides keys.
NAME = "item_key"


class Items(Extension):
    """Follows loops in processes that run tasks, and reads in workers where they died."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        #: Of this process; and the directory in which it was, or could not be made.
        self._page: MarkPage | None = None
        self._tried = ""
        #: Directories of the workers in this process; and what ended processes have left, by tokens.
        self._directories: set[str] = set()
        self._left: dict[str, Mark] = {}

    def following(self, run: Any, rows: Iterable[T], key: Callable[[T], object] | None) -> Iterator[T] | None:
        from celery_poison.extensions.items.loops import Loop  # not where an app only publishes

        page = self._page_here()  # None where this is no process of its own
        return None if page is None else Loop(page, run.ticket.token, rows, key, self.host.complain)

    def _page_here(self) -> MarkPage | None:
        from celery_poison.extensions.items.mark_page import MarkPage
        from celery_poison.worker import crash_reports

        directory = crash_reports.directory
        if directory == self._tried:
            return self._page
        self._tried = directory
        try:
            self._page = MarkPage(directory)
        except OSError as error:
            self.host.complain(error)
        return self._page

    def services(self, site: Any, exits: Any) -> Iterable[Service]:
        directory = exits.directory
        if directory:
            self._directories.add(directory)
            exits.hears.append(lambda pid: self._keep_mark(directory, pid))
        return ()

    def _keep_mark(self, directory: str, pid: int) -> None:
        from celery_poison.extensions.items.mark_page import take

        try:
            mark = take(directory, pid)
        except OSError as error:
            self.host.complain(error)
            return
        if mark is not None:
            while len(self._left) >= MOST:
                self._left.pop(next(iter(self._left)))
            self._left[mark.token] = mark

    def testify(self, evidence: Evidence, worker: str, token: str) -> Evidence:
        from celery_poison.extensions.items.mark_page import find

        if not token:
            return evidence
        mark = self._left.pop(token, None)
        for directory in () if mark else tuple(self._directories):
            mark = mark or find(directory, token)
        return mark.told_of(evidence, hides_key=self._hides_key()) if mark else evidence

    def _hides_key(self) -> bool:
        redact = self.host.settings.redact
        return bool(redact is True or any(fnmatchcase(NAME, str(each).lower()) for each in redact or ()))


EXTENSION = Items
