"""Finding and counting what is in quarantine, by the groups of it that the ledger keeps.

Conditions on task, cause, queue, fingerprint and group choose groups; only what is in those is read, one
message after the other, and asked the other conditions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, tee
from typing import Any, NamedTuple

from celery_poison import causes
from celery_poison.desk.search import (
    GROUP,
    By,
    Condition,
    Count,
    Filter,
    Group,
    group_id,
    grouped,
    ranked,
)
from celery_poison.ledger import Ledger
from celery_poison.ledger.groups import Alike, Counted, GroupKind
from celery_poison.ledger.views import Views
from celery_poison.model import MessageRecord
from celery_poison.states import State

#: Groups by fingerprint that are read where people look at groups by cause.
_GROUPS_READ = 500
#: Groups whose members are merged at most: of more, what is kept is read as a whole.
_GROUPS_MERGED = 2000
#: Messages that are looked at for a page, which takes a twentieth of a second; it tells how many match only
#: where there are no more, or at most so many.
PAGE_LOOKS_AT, PAGE_COUNTS_TO = 2000, 5000

_ALL = Filter()


class MatchingGroups(NamedTuple):
    """Where everything is that a filter lets through.

    Attributes:
        shas: in these groups; None: anywhere.
        messages: how many are there.
        is_exact: whether the filter lets all of them through.
    """

    shas: Sequence[str] | None
    messages: int
    is_exact: bool


class Found(NamedTuple):
    """One page of rows.

    Attributes:
        total: how many match; None where they are not counted.
        looked: messages that were looked at, where they are not counted since that would be very many.
        begin: there, where the next page begins: from when on, in ms, and how many that match are left out.
    """

    rows: Sequence[MessageRecord] = ()
    total: int | None = 0
    more: bool = False
    looked: int = 0
    begin: tuple[int, int] = (0, 0)


class Walk:
    """Iterates over what matches, as it is asked for, and knows how far it has looked.

    It yields no records but what the filter reads of them, and their mids.

    Args:
        most: messages that are looked at, and all that came in the same millisecond as the last; None: all.

    Attributes:
        looked: messages so far.
        at: when the last of them came, in ms.
        is_over: whether there are no others.
    """

    def __init__(
        self,
        index: Iterator[tuple[str, float]],
        queries: Views,
        where: Filter,
        state: State,
        most: int | None,
    ) -> None:
        entries, mids = tee(index)
        self._pairs = zip(entries, queries.parts((mid for mid, _ in mids), where.reads), strict=True)
        self._where, self._state, self._most = where, state, most
        self.looked, self.at, self.is_over = 0, 0.0, False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._where.choose(self._kept()))

    def _kept(self) -> Iterator[Any]:
        for (_, at), part in self._pairs:
            if self._most is not None and self.looked >= self._most and at != self.at:
                return
            self.looked, self.at = self.looked + 1, at
            # It may have been let go since.
            if part.state == self._state:
                yield part
        self.is_over = True


class Finder:
    """Finds messages in quarantine (NDLV), and what was given up (FAIL); raises ``LedgerUnavailable``."""

    def __init__(self, ledger: Ledger) -> None:
        self._queries = ledger.read

    # --- groups --------------------------------------------------------------------------------

    def by_queue(self) -> Counted:
        """Return the groups of messages that are alike in task, cause and queue."""
        return self._queries.alike(GroupKind.QUEUE)

    def groups(
        self, where: Filter = _ALL, by: By = By.FINGERPRINT, limit: int = 0
    ) -> tuple[list[Group], int]:
        """Return the largest groups of what matches, and how many there are.

        Args:
            limit: groups at most; 0: all. Of equally large ones any may be left out.
        """
        counted = self.by_queue()
        if by is By.CAUSE and all(_tells_queues(c, counted.groups) for c in where.conditions):
            groups = self._with_failures(where, merged(where.choose(counted.groups), by))
        elif all(c.field in ("task", "cause", "fingerprint", GROUP) for c in where.conditions):
            fine = self._queries.alike(
                GroupKind.FINGERPRINT, 0 if where.conditions or by is By.CAUSE else limit
            )
            groups = merged(where.choose(fine.groups), by)
            if not where.conditions and by is By.FINGERPRINT:
                return groups, fine.total
        else:
            groups = grouped(self.records(where), by)
        return groups[: limit or None], len(groups)

    def _with_failures(self, where: Filter, groups: list[Group]) -> list[Group]:
        """Return the same groups by task and cause, but of what was kept for what it raised those by that."""
        rest = [group for group in groups if group.cause != causes.FAILURE]
        if len(rest) == len(groups):
            return groups
        failures = Filter((*where.conditions, Condition("cause", "=", causes.FAILURE)))
        if any(c.field == "queue" for c in where.conditions):
            return ranked([*rest, *grouped(self.records(failures), By.CAUSE)])
        fine = self._queries.alike(GroupKind.FINGERPRINT).groups
        return ranked([*rest, *merged(failures.choose(fine), By.CAUSE)])

    def for_people(self, counted: Counted) -> list[Group]:
        """Return groups by task and cause, failures by what was raised, as far as that is quickly known.

        Where very many groups are finer than these, the rest of a task's failures is one group, without
        a fingerprint.

        Args:
            counted: what :meth:`by_queue` has returned.
        """
        coarse = merged(counted.groups, By.CAUSE)
        failures = {group.task: group for group in coarse if group.cause == causes.FAILURE}
        if not failures:
            return coarse
        largest = self._queries.alike(GroupKind.FINGERPRINT, _GROUPS_READ).groups
        fine = merged((each for each in largest if each.cause == causes.FAILURE), By.CAUSE)
        known = Counter[str]()
        for group in fine:
            known[group.task] += group.count
        rest = (replace(group, count=group.count - known[task]) for task, group in failures.items())
        others = [group for group in coarse if group.cause != causes.FAILURE]
        return ranked([*others, *fine, *(group for group in rest if group.count > 0)])

    def raised(self, groups: Iterable[Group]) -> dict[str, str]:
        """Return by the id of each group of kept failures the class of what its newest message raised."""
        kept = [group for group in groups if group.cause == causes.FAILURE and group.fingerprint]
        newest = self._queries.records([group.newest for group in kept])
        found = {group.group: record for group, record in zip(kept, newest, strict=True) if record}
        return {id: record.evidence.exception for id, record in found.items()}

    # --- messages ------------------------------------------------------------------------------

    def choose(self, state: State, where: Filter = _ALL) -> MatchingGroups:
        """Return in which groups there is what matches."""
        if state is State.FAIL:
            return MatchingGroups(None, self._queries.totals()["failed"], not where.conditions)
        counted = self.by_queue()
        coarse = [c for c in where.conditions if _tells_queues(c, counted.groups)]
        exact = (c for c in where.conditions if c.operator == "=" and c not in coarse)
        fine = [c for c in exact if c.field in ("fingerprint", GROUP)]
        if fine:
            fine += [c for c in coarse if c.field != "queue"]
            groups = [*Filter((*fine,)).choose(self._queries.groups_by_fingerprint(_pattern(fine)))]
            if len(groups) <= _GROUPS_MERGED:
                return _chosen(groups, is_exact=len(fine) == len(where.conditions))
        groups = [*Filter((*coarse,)).choose(counted.groups)]
        is_exact = len(coarse) == len(where.conditions)
        if len(groups) == len(counted.groups) or len(groups) > _GROUPS_MERGED:
            return MatchingGroups(None, counted.quarantined, is_exact and len(groups) == len(counted.groups))
        return _chosen(groups, is_exact)

    def index(
        self,
        state: State,
        chosen: MatchingGroups,
        where: Filter = _ALL,
        *,
        since: float = 0.0,
        until: float | None = None,
        oldest_first: bool = False,
        skip: int = 0,
    ) -> Iterator[tuple[str, float]]:
        """Yield (mid, since when, in ms) of what is in the chosen groups, of the time that matches.

        Args:
            since, until: only what came between these, in seconds; None: now.
            skip: so many are left out first, where all are chosen whenever they came.
        """
        earliest, latest = where.period()
        earliest = max(since, earliest)
        latest = until if latest is None else latest if until is None else min(latest, until)
        if skip:
            place = self._queries.place(chosen.shas, state, skip, oldest_first)
            if place is None:
                return iter(())
            moment, skip = place
            earliest, latest = (moment, latest) if oldest_first else (earliest, moment)
        if chosen.shas is None:
            pages = self._queries.pages(state, earliest, latest, oldest_first)
        else:
            pages = self._queries.members(chosen.shas, earliest, latest, oldest_first)
        return islice(chain.from_iterable(pages), skip, None)

    def walk(
        self,
        where: Filter = _ALL,
        state: State = State.NDLV,
        *,
        chosen: MatchingGroups | None = None,
        most: int | None = None,
        **which: Any,
    ) -> Walk:
        """Look for what matches, the newest first.

        Args:
            chosen: where that is, if it is known already.
            most: see :class:`Walk`.
            which: as :meth:`index` takes it.
        """
        chosen = chosen or self.choose(state, where)
        return Walk(self.index(state, chosen, where, **which), self._queries, where, state, most)

    def mids(self, where: Filter, state: State, chosen: MatchingGroups, **which: Any) -> Iterator[str]:
        """Yield the mids of what matches, as it is asked for; nothing but the index is read if it can tell.

        Args:
            which: as :meth:`index` takes it.
        """
        if chosen.is_exact:
            return (mid for mid, _ in self.index(state, chosen, where, **which))
        return (part.mid for part in self.walk(where, state, chosen=chosen, **which))

    def records(
        self, where: Filter = _ALL, state: State = State.NDLV, *, offset: int = 0, limit: int | None = None
    ) -> Iterator[MessageRecord]:
        """Yield the matching messages, the newest first, as they are asked for.

        Args:
            offset: so many are left out first.
            limit: so many at most; None: all.
        """
        chosen = self.choose(state, where)
        skip = offset if chosen.is_exact else 0
        mids = islice(self.mids(where, state, chosen, skip=skip), offset - skip, None)
        return self.whole(state, mids if limit is None else [*islice(mids, limit)])

    def whole(self, state: State, mids: Iterable[str]) -> Iterator[MessageRecord]:
        """Yield the records of some messages, as far as they are in this state."""
        # One may have been let go since.
        return (record for record in self._queries.records(mids) if record and record.state == state)

    def page(
        self,
        where: Filter,
        state: State,
        *,
        rows: int,
        offset: int = 0,
        oldest_first: bool = False,
        begin: int = 0,
        most: int | None = PAGE_LOOKS_AT,
    ) -> Found:
        """Return one page of what matches; where that takes reading very many, they are not counted.

        Args:
            offset: so many that match are left out first.
            begin: where they are not counted: from when on, in ms; 0: from the first.
            most: where they are not counted, messages that are looked at; None: as many as it takes.
        """
        chosen = self.choose(state, where)
        if not chosen.is_exact and chosen.messages > PAGE_COUNTS_TO:
            bound = {"since" if oldest_first else "until": begin / 1000} if begin else {}
            walk = self.walk(where, state, chosen=chosen, most=most, oldest_first=oldest_first, **bound)
            mids, entries = _page_of(walk, rows, offset, 1 if oldest_first else -1)
            return entries._replace(rows=[*self.whole(state, mids)])
        skip = offset if chosen.is_exact else 0
        matching = self.mids(where, state, chosen, oldest_first=oldest_first, skip=skip)
        mids = [*islice(matching, rows if chosen.is_exact else None)]
        total = chosen.messages if chosen.is_exact else len(mids)
        page = [*self.whole(state, mids[offset - skip :][:rows])]
        return Found(page, total, total > offset + rows)


def _page_of(walk: Walk, rows: int, offset: int, later: int) -> tuple[list[str], Found]:
    """Return the mids of a page of what is looked for, and where the next one begins."""
    entries = [(part.mid, int(walk.at)) for part in islice(walk, offset + rows + 1)]
    shown = entries[: offset + rows]
    if more := len(entries) > len(shown):
        last = shown[-1][1] if shown else entries[0][1]
        begin = last, sum(at == last for _, at in shown)
    else:
        more, begin = not walk.is_over, (int(walk.at) + later, 0)
    mids = [mid for mid, _ in shown[offset:]]
    return mids, Found((), None, more, walk.looked, begin if more else (0, 0))


def _chosen(groups: Sequence[Alike], is_exact: bool) -> MatchingGroups:
    return MatchingGroups([group.sha for group in groups], sum(group.messages for group in groups), is_exact)


def _tells_queues(condition: Condition, groups: Iterable[Alike]) -> bool:
    """Whether what is alike in task, cause and queue all fulfils this condition, or none of it."""
    if condition.field == GROUP:
        # It may be the id of one by fingerprint.
        coarse = (group_id(group.task, group.cause) for group in groups)
        return condition.operator == "=" and condition.value in coarse
    return condition.field in ("task", "cause", "queue")


def _pattern(conditions: Iterable[Condition]) -> str:
    """Return a pattern of Redis that leaves most others out, where a fingerprint is plain."""
    plain = (c.value for c in conditions if c.field == "fingerprint" and c.value.strip("*").isalnum())
    value = next(plain, "")
    return f'*"{value}"]' if value else "*"


def merged(alike: Iterable[Alike], by: By) -> list[Group]:
    """Return groups out of finer ones, in the order of :func:`grouped`."""
    groups: dict[tuple[str, str, str | None], Count] = defaultdict(Count)
    for each in alike:
        groups[each.task, each.cause, by.told_by(each.cause, each.fingerprint)].add(
            each.messages, each.relapsed, each.first_seen / 1000, each.last_seen / 1000, each.newest
        )
    return ranked(count.group(*key) for key, count in groups.items())
