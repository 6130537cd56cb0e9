"""Finding and counting what is in quarantine, by the groups of it that the ledger keeps.

Conditions on task, cause, queue, fingerprint and group choose groups; only what is in those is read, one
message after the other, and asked the other conditions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.ledger.groups import Alike, Counted, Kind
from celery_poison.ledger.queries import Queries
from celery_poison.model import MessageRecord
from celery_poison.quarantine.search import GROUP, By, Condition, Filter, Group, group_id, grouped, ranked
from celery_poison.states import State

#: Groups whose members are merged at most: of more, what is kept is read as a whole.
_MERGED = 2000
#: Messages that are read at most only to tell how many match.
_COUNTED = 5000

_ALL = Filter()


class Chosen(NamedTuple):
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
    """One page of rows; ``total`` is None where nobody counts."""

    rows: Sequence[MessageRecord] = ()
    total: int | None = 0
    more: bool = False


class Finder:
    """Finds messages in quarantine (NDLV), and what was given up (FAIL); raises ``LedgerUnavailable``."""

    def __init__(self, ledger: Ledger, queries: Queries) -> None:
        self._ledger = ledger
        self._queries = queries

    # --- groups --------------------------------------------------------------------------------

    def by_queue(self) -> Counted:
        """Return what is alike in task, cause and queue.

        What versions of before quarantined is put into its groups first. Not whole: Redis takes no writes.
        """
        counted = self._queries.alike(Kind.QUEUE)
        if not counted.is_whole:
            with suppress(LedgerUnavailable):
                for _ in self.regroup():
                    pass
                counted = self._queries.alike(Kind.QUEUE)
        return counted

    def regroup(self) -> Iterator[int]:
        """Put into its group what is in none, and take out of it what has left, a step at a time."""
        for page in self._queries.pages(State.NDLV):
            self._ledger.regroup([mid for mid, _ in page])
            yield len(page)
        if self._queries.alike(Kind.QUEUE).is_whole:
            return
        for kind in Kind:
            for group in self._queries.alike(kind).groups:
                labels = group.task, group.cause, group.queue or group.fingerprint
                for page in self._queries.members([group.sha]):
                    self._ledger.ungroup(kind, labels, [mid for mid, _ in page])
                    yield len(page)

    def groups(
        self, where: Filter = _ALL, by: By = By.FINGERPRINT, limit: int = 0
    ) -> tuple[list[Group], int]:
        """Return the largest groups of what matches, and how many there are.

        Args:
            limit: groups at most; 0: all. Of equally large ones any may be left out.
        """
        counted = self.by_queue()
        if not counted.is_whole:
            found = grouped(self.records(where), by)
        elif by is By.CAUSE and all(_tells_queues(c, counted.groups) for c in where.conditions):
            found = merged(where.choose(counted.groups), by)
        elif all(c.field in ("task", "cause", "fingerprint", GROUP) for c in where.conditions):
            fine = self._queries.alike(Kind.FINGERPRINT, 0 if where.conditions or by is By.CAUSE else limit)
            found = merged(where.choose(fine.groups), by)
            if not where.conditions and by is By.FINGERPRINT:
                return found, fine.total
        else:
            found = grouped(self.records(where), by)
        return found[: limit or None], len(found)

    # --- messages ------------------------------------------------------------------------------

    def choose(self, state: State, where: Filter = _ALL) -> Chosen:
        """Return in which groups there is what matches."""
        if state is State.FAIL:
            return Chosen(None, self._queries.totals()["failed"], not where.conditions)
        counted = self.by_queue()
        if not counted.is_whole:
            return Chosen(None, counted.quarantined, not where.conditions)
        coarse = [c for c in where.conditions if _tells_queues(c, counted.groups)]
        fine = [c for c in where.conditions if c not in coarse and _chooses_fingerprints(c)]
        if fine:
            fine += [c for c in coarse if c.field != "queue"]
            groups = [*Filter((*fine,)).choose(self._queries.by_fingerprint(_pattern(fine)))]
            if len(groups) <= _MERGED:
                return _chosen(groups, is_exact=len(fine) == len(where.conditions))
        groups = [*Filter((*coarse,)).choose(counted.groups)]
        is_exact = len(coarse) == len(where.conditions)
        if len(groups) == len(counted.groups) or len(groups) > _MERGED:
            return Chosen(None, counted.quarantined, is_exact and len(groups) == len(counted.groups))
        return _chosen(groups, is_exact)

    def mids(
        self,
        state: State,
        chosen: Chosen,
        where: Filter = _ALL,
        *,
        until: float | None = None,
        oldest_first: bool = False,
        skip: int = 0,
    ) -> Iterator[str]:
        """Yield the mids of what is in the chosen groups, of the time that matches.

        Args:
            until: only what came until then, in seconds.
        """
        since, latest = where.period()
        latest = until if latest is None else latest if until is None else min(latest, until)
        if chosen.shas is None:
            pages = self._queries.pages(state, since, latest, oldest_first, skip)
            return (mid for mid, _ in chain.from_iterable(pages))
        pages = self._queries.members(chosen.shas, since, latest, oldest_first)
        return islice((mid for mid, _ in chain.from_iterable(pages)), skip, None)

    def records(
        self,
        where: Filter = _ALL,
        state: State = State.NDLV,
        *,
        chosen: Chosen | None = None,
        until: float | None = None,
        oldest_first: bool = False,
        offset: int = 0,
    ) -> Iterator[MessageRecord]:
        """Yield what matches, the newest first, as it is asked for.

        Args:
            chosen: where that is, if it is known already.
            until: only what came until then, in seconds.
            offset: so many are left out first.
        """
        chosen = chosen or self.choose(state, where)
        skip = offset if chosen.is_exact else 0
        mids = self.mids(state, chosen, where, until=until, oldest_first=oldest_first, skip=skip)
        # Somebody may have let one go since.
        kept = (record for record in self._queries.records(mids) if record and record.state == state)
        return islice(iter(where.choose(kept)), offset - skip, None)

    def page(
        self, where: Filter, state: State, *, rows: int, offset: int = 0, oldest_first: bool = False
    ) -> Found:
        """Return one page of what matches; where that takes reading very many, nobody counts."""
        chosen = self.choose(state, where)
        skip = offset if chosen.is_exact else 0
        found = self.records(where, state, chosen=chosen, oldest_first=oldest_first, offset=skip)
        if not chosen.is_exact and chosen.messages > _COUNTED:
            page = [*islice(found, offset, offset + rows + 1)]
            return Found(page[:rows], None, len(page) > rows)
        page = [*islice(found, rows if chosen.is_exact else None)]
        total = chosen.messages if chosen.is_exact else len(page)
        return Found(page[offset - skip :][:rows], total, total > offset + rows)


def _chosen(groups: Sequence[Alike], is_exact: bool) -> Chosen:
    return Chosen([group.sha for group in groups], sum(group.messages for group in groups), is_exact)


def _tells_queues(condition: Condition, groups: Iterable[Alike]) -> bool:
    """Whether what is alike in task, cause and queue all fulfils this condition, or none of it."""
    if condition.field == GROUP:
        # It may be the id of one by fingerprint.
        coarse = (group_id(group.task, group.cause) for group in groups)
        return condition.operator == "=" and condition.value in coarse
    return condition.field in ("task", "cause", "queue")


def _chooses_fingerprints(condition: Condition) -> bool:
    return condition.operator == "=" and condition.field in ("fingerprint", GROUP)


def _pattern(conditions: Iterable[Condition]) -> str:
    """Return a pattern of Redis that leaves most others out, where a fingerprint is plain."""
    plain = (c.value for c in conditions if c.field == "fingerprint" and c.value.strip("*").isalnum())
    value = next(plain, "")
    return f'*"{value}"]' if value else "*"


def merged(alike: Iterable[Alike], by: By) -> list[Group]:
    """Return groups out of finer ones, in the order of :func:`grouped`."""
    found = defaultdict[tuple[str, str, str | None], list[Alike]](list)
    for each in alike:
        found[each.task, each.cause, each.fingerprint if by is By.FINGERPRINT else None].append(each)
    return ranked(_group(*key, parts) for key, parts in found.items())


def _group(task: str, cause: str, fingerprint: str | None, parts: Sequence[Alike]) -> Group:
    newest = parts[0] if len(parts) == 1 else max(parts, key=lambda part: part.last_seen)
    return Group(
        group=group_id(task, cause, fingerprint),
        task=task,
        cause=cause,
        fingerprint=fingerprint or "",
        count=sum(part.messages for part in parts),
        relapsed=sum(part.relapsed for part in parts),
        first_seen=min(part.first_seen for part in parts) / 1000,
        last_seen=newest.last_seen / 1000,
        newest=newest.newest,
    )
