"""The tables that are made of one app's journal: kept up to date by what is new in it.

==================  ==============================================================================
stored              made of
==================  ==============================================================================
company             new runs that ended alive, and those of the last days, beside new troubles
exceptions          the journal's troubles and their company, of the days that anything new concerns
incidents           the troubles, exceptions, of the same days
fingerprints_daily  exceptions, company, of the same days and the two before
runs_daily          the days of new entries: tallies of the runs that ended alive
sketches            the same days: counts and sketches of these runs
==================  ==============================================================================

Each says in its commit up to where in the journal it reaches. ``attempts`` is a view: the journal's healthy
runs as they stand there, united with the exceptions; ``kin`` is the company, united with them; ``messages``
is a view of the whole journal; ``fingerprints``, ``tallies`` and ``task_daily`` add up days.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from celery_poison.pipeline import blame, tables
from celery_poison.pipeline.blame import ALWAYS
from celery_poison.pipeline.lake import Gap, Lake, LeftOut, Position, Table, after
from celery_poison.pipeline.schema import JOURNAL, LAST_MS, VERSIONS
from celery_poison.pipeline.seek import LOOK_BACK_MS, alive, company, having
from celery_poison.pipeline.session import has_tasks, kept, rebalanced, together
from celery_poison.pipeline.tables.attempts import started
from celery_poison.pipeline.tables.daily import KEYS
from celery_poison.pipeline.window import Window, and_the_next, day, days_between, first_ms

#: Stored tables, whose files are apart by date.
STORED = ("company", "exceptions", "incidents", "fingerprints_daily", "runs_daily", "sketches")
_OF_TROUBLES = ("exceptions", "incidents", "fingerprints_daily")
VIEWS = ("attempts", "fingerprints", "kin", "messages", "tallies", "task_daily", "noted", "measured")
#: What :meth:`Derived.register` makes views of.
SHOWN = ("attempts", "messages", "incidents", "fingerprints", "task_daily", "tallies", "blame")
#: Rises when the rules change by which stored tables are made: those of another number are made anew.
LOGIC = 1
#: What counts of runs are made of.
_OF_RUNS = (
    *("token", "at", "date", "event", "outcome", "cause", "task", "queue", "worker"),
    *("runtime_ms", "payload_bytes", "memory_kb", "fingerprint", "shape", "release"),
)
#: What makes one entry change what another one means.
_LINKS = ("id", "mid", "incident")


@dataclass(frozen=True)
class AsOf:
    """Of which journal the tables are.

    Attributes:
        version: of the journal's table.
        upto: the newest entry that they know, and ``at`` its time; None where there is none.
        gaps: what never came into the lake.
        left_out: what is in the lake and not in the tables.
    """

    version: int
    upto: str
    at: datetime | None
    gaps: tuple[Gap, ...]
    left_out: tuple[LeftOut, ...]

    def says(self) -> str:
        """Return in words of which history the tables are."""
        end = f"{self.at:%Y-%m-%d %H:%M} UTC" if self.at else "an empty journal"
        return f"as of version {self.version} of the lake, up to {end}"


class Derived:
    """Tables of one lake and app, as DataFrames by name: ``derived["incidents"]``.

    Args:
        progress: is told in words what is being done.
    """

    def __init__(
        self, session: Any, lake: Lake, progress: Callable[[str], None] = lambda words: None
    ) -> None:
        self._session, self._lake, self._progress = session, lake, progress
        self._tables: dict[str, Table] = {}
        self._as_of: AsOf | None = None
        self._goal = Position()
        self._made = False
        self._stale: set[str] = set()
        self._rebuilt: Position | None = None
        self._alive: pa.Table | None = None

    def make(self, *, rebuild: bool = False, since: date | None = None) -> None:
        """Bring all of :data:`STORED` up to the end of the journal as it is now.

        Args:
            rebuild: make them anew, though they may be up to date.
            since: only from this day on; those before stay as they are.
        """
        lake = self._lake
        lake.journal.refresh()
        self._stale = set(STORED) if rebuild else set()
        self._rebuilt = Position(ms=max(0, first_ms(str(since)) - 1)) if since else None
        known = lake.journal.position(lake.app) or Position()
        self._goal = replace(known, journal=max(0, lake.journal.version), logic=LOGIC)
        self._made, self._as_of, self._alive = True, None, None
        self._update("company", self._company)
        together(self._make_of_troubles, self._make_of_days)

    def _make_of_troubles(self) -> None:
        if all(self._is_current(name) for name in _OF_TROUBLES):
            return
        days = self._touched()
        rest, company = self._context(days)
        # No more of the company is asked for, and what is kept is kept whole.
        company = company.select("token", "at", "worker", "runtime_ms")
        if has_tasks(self._session):  # else both are in memory
            rest, company = rest.persist(), company.persist()
        other = kept(tables.ends(rest, company))
        try:
            self._update_days("exceptions", days, lambda: tables.troubled(other, rest, company))
            wide = days and and_the_next(days)
            together(
                lambda: self._update_days(
                    "incidents", days, lambda: tables.incidents(rest, self._of("exceptions", wide))
                ),
                lambda: self._make_fingerprints(days),
            )
        finally:
            for each in (other, rest, company):
                each.unpersist()

    def _make_fingerprints(self, days: list[str] | None) -> None:
        """Also of the days before, whose runs may bear a fingerprint that died only now."""
        name = "fingerprints_daily"
        if days is not None and (since := self._since(name)):
            days = sorted({*days, *days_between(max(0, since.ms - LOOK_BACK_MS), self._goal.ms)})
        self._update_days(name, days, lambda: tables.fingerprints_daily(self._kin(days)))

    def _touched(self) -> list[str] | None:
        """Return the days that something new about troubles concerns; None: all must be made anew."""
        if (since := _earliest(*map(self._since, _OF_TROUBLES))) is None:
            return None
        company = self._table("company").frame([("date", ">=", day(since.ms))]).where(after(since))
        new = self._lake.entries(since, healthy=False).unionByName(company)
        began = F.greatest(started().cast("date"), F.date_sub("date", 7)).cast("string")
        date = F.col("date").cast("string").alias("date")
        told = new.select(*_LINKS, began.alias("began"), date).toArrow()
        days = {day(since.ms)}
        for row in told.group_by(["began", "date"]).aggregate([]).to_pylist():
            days.update(days_between(first_ms(row["began"]), first_ms(row["date"])))
        found = self._linked(sorted(days), told).select("date").distinct().collect()
        return sorted(days | {str(row["date"]) for row in found})

    def _context(self, days: list[str] | None) -> tuple[Any, Any]:
        """Return the troubles, and their company, that the tables of some days are made of."""
        if days is None:
            return self["noted"], self["company"]
        wide = and_the_next(days)
        rest, company = self._lake.entries(healthy=False, days=wide), self._of("company", wide)
        mine = rest.unionByName(company).where(F.col("date").cast("string").isin(days))
        told = mine.select(*_LINKS, "healthy").toArrow()
        # A start may have ended alive on any day, too.
        ids = told["id"].filter(pc.invert(told["healthy"])).drop_null().unique()
        alive = having(self._session, self._table("company"), [("date", "not in", wide)], {"id": ids})
        return rest.unionByName(self._linked(wide, told)), company.unionByName(alive)

    def _linked(self, days: list[str], told: pa.Table) -> Any:
        """Return the troubles of all other days that have an id or an incident of some entries."""
        links = {name: told[name].drop_null().unique() for name in _LINKS}
        troubles = [("app", "=", self._lake.app), ("healthy", "=", "false"), ("date", "not in", days)]
        found = having(self._session, self._lake.journal, troubles, links)
        return found.where(F.col("v").isin(*VERSIONS))

    def _of(self, name: str, days: list[str] | None) -> Any:
        return self._table(name).frame([] if days is None else [("date", "in", days)])

    def _update_days(self, name: str, days: list[str] | None, make: Callable[[], Any]) -> None:
        if days is None:
            self._update(name, lambda _: make())
        else:
            of_days = F.col("date").cast("string").isin(days)
            self._update(name, lambda _: (make().where(of_days), [("date", "in", days)]))

    def _make_of_days(self) -> None:
        if self._is_current("runs_daily") and self._is_current("sketches"):
            return
        since = _earliest(self._since("runs_daily"), self._since("sketches"))
        back = [("date", ">=", day(max(0, since.ms - LOOK_BACK_MS)))] if since else []
        again = tables.repeated(self._table("company").frame(back)).toArrow()
        runs, replacing = self._of_days(since, again)
        together(
            lambda: self._update("runs_daily", lambda _: (tables.tallies(runs), replacing)),
            lambda: self._update("sketches", lambda _: (tables.daily(runs), replacing)),
        )

    def _update(self, name: str, make: Callable[[Position | None], Any]) -> None:
        """Bring one table up to date: ``make`` is told up to where it is, or None if it must be made anew."""
        if self._is_current(name):
            return
        table, since = self._table(name), self._since(name)
        with self._timed(name):
            made = make(since)
            frame, replacing = made if isinstance(made, tuple) else (made, [])
            if table.partitions:  # else each task would write a file for each day
                frame = rebalanced(self._session, frame, table.partitions)
            table.write(frame, self._lake.app, self._goal, replacing if since else [])
            self._stale.discard(name)

    def _since(self, name: str) -> Position | None:
        """Return up to where a table is, or as far as it is to stay; None if it must be made anew."""
        since = self._table(name).position(self._lake.app)
        goal = self._goal
        if name in self._stale:
            return self._rebuilt and _earliest(self._rebuilt, since)
        return since if since and (since.epoch, since.logic) == (goal.epoch, goal.logic) else None

    def _is_current(self, name: str) -> bool:
        there = self._since(name)
        return there is not None and (there.ms, there.seq) == (self._goal.ms, self._goal.seq)

    def _company(self, since: Position | None) -> Any:
        since = since and _earliest(since, self._since("exceptions"))  # a killed command made one of both
        if since is None:
            return company(self._lake, None, None, None)
        dead, back = "death is not null and fingerprint is not null", day(max(0, since.ms - LOOK_BACK_MS))
        stale = day(since.ms + 1) if "company" in self._stale else None
        kept = f"date >= '{back}'" + (f" and date < '{stale}'" if stale else "")
        died = self._table("exceptions").arrow(["fingerprint"], dead)["fingerprint"]
        found = company(self._lake, since, died, self._table("company").arrow(["entry"], kept)["entry"])
        return found, [("date", ">=", stale)] if stale else None

    def _of_days(self, since: Position | None, again: pa.Table) -> tuple[Any, Any]:
        """Return the healthy runs of days on which anything is new, and the filters of what they replace."""
        replacing: list[Any] | None = []
        columns = _OF_RUNS + ("entry",) * bool(len(again))  # the ids of all runs, too, only where some count
        if since is None:
            runs = self._lake.entries(healthy=True, columns=columns)
        else:
            entries = self._lake.entries(since, healthy=True, columns=["date"])
            new = entries.select("date").distinct().toArrow()["date"]
            begin = pa.scalar(min(since.ms, LAST_MS) * 1000, again["later"].type)
            told = again["date"].filter(pc.greater_equal(again["later"], begin))
            days = [str(date) for date in {*new.to_pylist(), *told.to_pylist()} if date]
            days_or_none = days or ["0001-01-01"]
            runs = self._lake.entries(healthy=True, days=days_or_none, columns=columns)
            replacing = [("date", "in", days)] if days else None
        runs = runs.where("at is not null")
        if len(again):
            runs = runs.join(F.broadcast(self._session.createDataFrame(again)), "entry", "left_anti")
        return tables.plain(runs), replacing

    def judge(self, window: Window = ALWAYS, cause: str | None = None) -> list[dict[str, Any]]:
        """Return rows of the table ``blame``; they are stored where they are of the whole history."""
        self._ready()
        with self._timed("blame"):
            told = blame.blame(self.ask, window, cause)
            if window == ALWAYS and cause is None:
                table = self._table("blame")
                before = table.arrow().to_pylist() if table.exists else []
                told = self.store(blame.with_history(told, before, self.as_of.upto))
        return told

    def store(self, blamed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Make rows the table ``blame``, and return them."""
        self._table("blame").write(pa.Table.from_pylist(blamed, blame.SCHEMA), self._lake.app, self._goal, [])
        return blamed

    def ask(self, query: str) -> Any:
        """Return the result of a query, as an Arrow table; ``{incidents}`` in it is the table of that name.

        ``{deaths}`` are the attempts that died.
        """
        tables = {name: self[name] for name in set(re.findall(r"{(\w+)}", query)) - {"deaths"}}
        if "{deaths}" in query:
            tables["deaths"] = self["exceptions"].where("end = 'crashed'")
        return self._session.sql(query, **tables).toArrow()

    def register(self, prefix: str = "lake_") -> list[str]:
        """Make views that ``spark.sql`` knows by name, as ``lake_attempts``; return their names."""
        names = [f"{prefix}{name}" for name in SHOWN]
        for name, view in zip(SHOWN, names, strict=True):
            self[name].createOrReplaceTempView(view)
        return names

    def window(self, since: str | None, until: str | None) -> Window:
        """Return the days that ``--since`` and ``--until`` say."""
        at = self.as_of.at
        return Window.of(since, until, at.date() if at else None)

    @property
    def as_of(self) -> AsOf:
        """Of which journal the tables are."""
        self._ready()
        if self._as_of is None:
            goal, lake = self._goal, self._lake
            at = datetime.fromtimestamp(goal.ms / 1000, UTC) if goal.ms else None
            self._as_of = AsOf(goal.journal, str(goal) if goal.ms else "", at, lake.gaps(), lake.left_out())
        return self._as_of

    @property
    def left_out(self) -> list[str]:
        return [*map(str, (*self.as_of.left_out, *self.as_of.gaps))]

    def __getitem__(self, name: str) -> Any:
        """Return one table; all are brought up to date first, once in the life of this object."""
        self._ready()
        if name in VIEWS:
            return getattr(self, f"_view_{name}")()
        if name == "blame" and not self._is_current(name):
            self.judge()
        return self._table(name).frame()

    def _ready(self) -> None:
        if not self._made:
            self.make()

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            known = JOURNAL if name == "company" else None
            self._tables[name] = self._lake.table(name, ("date",) if name in STORED else (), known)
        return self._tables[name]

    def _view_noted(self) -> Any:
        return self._lake.entries(healthy=False)

    def _view_measured(self) -> Any:
        again = tables.repeated(self["company"]).select("entry")
        runs = self._lake.entries(healthy=True).join(again, "entry", "left_anti")
        return tables.measured(runs, self["exceptions"])

    def _view_attempts(self) -> Any:
        again = tables.repeated(self["company"])
        return tables.united(self._lake.entries(healthy=True), again, self["exceptions"])

    def _view_fingerprints(self) -> Any:
        """What a trial proved guilty is looked for in the whole journal: days long past may speak for it."""
        summed = tables.fingerprints(self["fingerprints_daily"])
        if self._alive is None:
            proven = summed.where("guilty_messages > 0 and alive = 0 and cleared = 0").select("fingerprint")
            suspects = proven.toArrow()["fingerprint"]
            self._alive = alive(self._lake, suspects.unique()) if len(suspects) else pa.table({})
        if not len(self._alive):
            return summed
        seen = F.broadcast(self._session.createDataFrame(self._alive))
        added = summed.join(seen, "fingerprint", "left").withColumn("count", F.coalesce("count", F.lit(0)))
        return added.withColumns(
            {name: F.col(name) + F.col("count") for name in ("alive", "attempts", "messages")}
        ).drop("count")

    def _view_kin(self) -> Any:
        return self._kin(None)

    def _kin(self, days: list[str] | None) -> Any:
        """Return the attempts of some days that have to do with a trouble."""
        company = self._of("company", days)
        return tables.united(company, tables.repeated(company), self._of("exceptions", days))

    def _view_messages(self) -> Any:
        return tables.messages(self._lake.entries())

    def _view_tallies(self) -> Any:
        every = self["runs_daily"].unionByName(tables.tallies(self["exceptions"]))
        sums = (F.sum(name).alias(name) for name in ("n", "fingerprints", "runtime_ms"))
        return every.groupBy(*KEYS).agg(*sums, F.min("since").alias("since"), F.max("until").alias("until"))

    def _view_task_daily(self) -> Any:
        return tables.task_daily(self["sketches"].unionByName(tables.daily(self["exceptions"])))

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._progress(f"{name}: {time.monotonic() - began:.1f} s")


def _earliest(*known: Position | None) -> Position | None:
    there = [each for each in known if each]
    return min(there, key=lambda each: (each.ms, each.seq)) if len(there) == len(known) else None
