"""A lake: Delta tables in a directory or below a URL of an object store, written without a jar.

Every table is plain Delta, by ``deltalake``: DuckDB, pandas, polars and a Spark with Delta read it, too.
Progress stands in the table itself, as Delta's application transactions: see :class:`Position`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from celery_poison.basics.text import clean
from celery_poison.errors import PoisonError
from celery_poison.pipeline import sink
from celery_poison.pipeline.schema import GAPS, JOURNAL, LAKE, LAST_MS, VERSIONS
from celery_poison.pipeline.session import has_tasks
from celery_poison.pipeline.window import day

T = TypeVar("T")

#: The description of a journal that no ingest made.
GENERATED = "a generated history"
_PARTITIONS = ("app", "date", "healthy")
#: How often an append and a deletion are tried beside each other.
_TRIES = 10
#: So many rows of a table are held in memory, where the journal is small.
_HELD_ROWS = 10_000
#: In a path Spark takes some of these for a pattern, and Delta cannot name the others.
_UNUSABLE = frozenset("[]{}*?\\^|%")
#: Column, comparison and value, all of which must hold.
Filters = Sequence[tuple[str, str, Any]]


class LakeError(PoisonError):
    """A lake that cannot be used as it was asked; the text says why and what to do."""


class LakeTaken(LakeError):
    """Another process committed first: what this one wrote does not count."""


@dataclass(frozen=True)
class Gap:
    """Entries that were gone before they could be read.

    Attributes:
        after, upto: ids between which they had been.
        missing: how many; None where Redis cannot tell.
        why: in words.
    """

    after: str
    upto: str
    missing: int | None
    why: str

    def __str__(self) -> str:
        many = "an unknown number of" if self.missing is None else str(self.missing)
        return f"GAP: {many} entries between {self.after} and {self.upto}: {self.why}"


@dataclass(frozen=True)
class LeftOut:
    """Something in the lake that was not read."""

    where: str
    why: str
    rows: int | None = None

    def __str__(self) -> str:
        rows = f" ({self.rows} entries)" if self.rows is not None else ""
        return f"left out: {clean(self.where)}{rows}: {clean(self.why)}"


@dataclass(frozen=True)
class Position:
    """Up to which entry of one app's journal a table reaches; ``str()`` is the entry's id.

    Attributes:
        ms, seq: the parts of that id.
        added: entries ever added to the stream when its newest was read, or UNKNOWN.
        since: entries read after that.
        epoch: rises when entries were taken out of the journal, or its stream was replaced: what was
            made of it must be made anew.
        journal: version of the journal's table that a derived table was made of.
        logic: by which release's rules it was made, see ``derived.LOGIC``.
    """

    ms: int = 0
    seq: int = 0
    added: int = 0
    since: int = 0
    epoch: int = 0
    journal: int = 0
    logic: int = 0

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    def transactions(self, app: str) -> list[Transaction]:
        """Return it as what a commit carries. Two commits with the same ones conflict: that is the fence."""
        named = zip(_NAMES, astuple(self), strict=True)
        return [Transaction(f"{app} {name}", min(max(0, n + 1), LARGEST)) for name, n in named]


#: More does not fit into a transaction.
LARGEST = 2**63 - 2
_NAMES = ("ms", "seq", "added", "since", "epoch", "journal", "logic")


class Table:
    """One Delta table, as it was when it was first asked: :meth:`refresh` looks again.

    Args:
        uri: its directory or URL.
        partitions: columns by which its files are apart, when it is made.
        version: an older one, to be read.
        known: columns that an older release made it without are null in its rows.
    """

    def __init__(
        self,
        session: Any,
        uri: str,
        partitions: Sequence[str] = (),
        version: int | None = None,
        known: StructType | None = None,
    ) -> None:
        self._session, self.uri, self.partitions = session, uri, tuple(partitions)
        self._known, self._asked = known or StructType(), version
        self._delta: DeltaTable | None = None
        self._held, self._lock = dict[str, Any](), Lock()

    @property
    def delta(self) -> DeltaTable:
        """The table of ``deltalake``; raises LakeError where there is none."""
        if self._delta is None:
            try:
                self._delta = DeltaTable(self.uri, version=self._asked)
            except TableNotFoundError:
                raise LakeError(f"there is no table at {self.uri}") from None
        return self._delta

    @property
    def exists(self) -> bool:
        with suppress(LakeError):
            return bool(self.delta)
        return False

    @property
    def version(self) -> int:
        """Of the newest commit; -1 where there is no table."""
        return self.delta.version() if self.exists else -1

    @property
    def schema(self) -> StructType:
        return self._with(self._known)

    def _with(self, wanted: StructType) -> StructType:
        own = _of_delta(self.delta.schema())
        return StructType([*own, *(each for each in wanted if each.name not in own.names)])

    def refresh(self) -> None:
        self._delta = None
        self._held.clear()

    def position(self, app: str) -> Position | None:
        """Return how far the table reaches in the journal of an app; None where it has nothing of it."""
        if not self.exists:
            return None
        found = [self.delta.transaction_version(f"{app} {name}") for name in _NAMES]
        return None if found[0] is None else Position(*(0 if n is None else n - 1 for n in found))

    def frame(self, filters: Filters = (), columns: Sequence[str] = ()) -> Any:
        """Return the table as a DataFrame.

        The files are fixed now: whatever is committed meanwhile, and what ``maintain`` removes no sooner than
        it may, changes nothing. A file that is gone all the same is an error, never silence.

        Args:
            filters: on partitions, as ``("date", ">=", "2026-11-21")``, and on other columns, by which whole
                files are left out, no rows.
            columns: that are needed; the others may be null. Empty: all.
        """
        schema = self.schema
        paths = self._uris(filters)
        if not paths:
            return self._session.createDataFrame([], schema)
        if not has_tasks(self._session) and sink.rows_of(self.delta, paths) <= _HELD_ROWS:
            return self._in_memory([*filters], schema)
        if not sink.is_local(self.uri):
            return sink.read(self._session, self.uri, self.files(filters), schema, columns)
        # deltalake quotes the directory, which Spark takes as it is; below it nothing needs quotes.
        below = len(self.delta.metadata().partition_columns) + 1
        files = [f"{self.uri}/{'/'.join(path.split('/')[-below:])}" for path in paths]
        reader = self._session.read.schema(schema).option("basePath", self.uri)
        return reader.parquet(*files).select(*schema.names)

    def _in_memory(self, filters: Filters, schema: StructType) -> Any:
        """Return few rows, read once: Spark opens their files for each query as often as it names them."""
        with self._lock:
            if (asked := repr(filters)) not in self._held:
                self._held[asked] = sink.read_here(self._session, self.uri, self.files(filters), schema)
            return self._held[asked]

    def files(self, filters: Filters) -> list[tuple[str, str]]:
        """Return what :func:`sink.listed` tells of the files that :meth:`frame` would read, if any."""
        return sink.listed(self.delta, self._uris(filters)) if self.exists else []

    def _uris(self, filters: Filters) -> list[str]:
        return list(self.delta.file_uris(file_pruning_predicate=list(filters) or None))

    def arrow(self, columns: Sequence[str] | None = None, where: str | None = None) -> pa.Table:
        """Return rows of a table in this process, without Spark; ``where`` is SQL."""
        scan = self.delta.scan(columns=list(columns) if columns else None, predicate=where)
        return sink.plain(pa.table(scan))

    def create(self, schema: StructType, description: str = "") -> None:
        """Make an empty table where there is none; where there is one, add the columns that it lacks."""
        if not self.exists:
            DeltaTable.create(
                self.uri,
                sink.arrow_schema(schema),
                mode="ignore",
                partition_by=list(self.partitions),
                description=description,
                configuration={"delta.checkpointInterval": "10"},  # a reader asks for each commit since
            )
            self.refresh()
        if lacking := self._with(schema)[len(self._with(StructType())) :]:
            # Rows that are there already have nothing in them: they may be null.
            wanted = Schema.from_json(StructType([StructField(f.name, f.dataType) for f in lacking]).json())
            self.delta.alter.add_columns(wanted.fields)
            self.refresh()

    def commit(
        self,
        files: Sequence[sink.Written],
        app: str,
        position: Position,
        metadata: Mapping[str, Any] | None = None,
        replacing: Sequence[tuple[str, str, Any]] | None = None,
        identity: str = "",
    ) -> None:
        """Make files count, and say how far the table reaches now, in one step.

        Args:
            metadata: told to those who read the table's history.
            replacing: what they replace, as partition filters; empty: everything; None: nothing.
            identity: of the journal that they come from.

        Raises:
            LakeTaken: somebody else committed for this app since the table was read.
        """
        before = self.position(app)
        beside_others(
            self,
            lambda: self._commit(files, app, position, metadata, replacing, identity),
            # Delta refuses to append beside a deletion, too, which has taken nothing from these.
            again=lambda: replacing is None and self.position(app) == before,
        )

    def _commit(
        self,
        files: Sequence[sink.Written],
        app: str,
        position: Position,
        metadata: Mapping[str, Any] | None,
        replacing: Sequence[tuple[str, str, Any]] | None,
        identity: str,
    ) -> None:
        self.delta.create_write_transaction(
            [file.action() for file in files],
            "append" if replacing is None else "overwrite",
            self.delta.schema(),
            partition_by=list(self.partitions),
            partition_filters=list(replacing) if replacing else None,
            commit_properties=CommitProperties(
                custom_metadata={"celery_poison": json.dumps({"app": app, **(metadata or {})})},
                app_transactions=position.transactions(app) + [Transaction(identity, 1)] * bool(identity),
            ),
        )

    def write(self, rows: Any, app: str, position: Position, replacing: Sequence[Any] | None = None) -> None:
        """Write a DataFrame, which Spark's tasks do, or a small Arrow table, and commit it."""
        self.create(_of_delta(Schema.from_arrow(rows.schema)) if isinstance(rows, pa.Table) else rows.schema)
        files = sink.written(rows, self.uri, self.partitions)
        self.commit(files, app, position, {"journal": position.journal}, replacing)


def _of_delta(schema: Schema) -> StructType:
    return StructType.fromJson(json.loads(schema.to_json()))


def beside_others(table: Table, act: Callable[[], T], again: Callable[[], bool] = lambda: True) -> T:
    """Return what ``act`` does to a table; where somebody else was first, try a few times while ``again()``.

    Raises:
        LakeTaken: others were first every time, or ``again()`` says no.
    """
    left = _TRIES
    while True:
        left -= 1
        try:
            return act()
        except CommitFailedError as error:
            table.refresh()
            if left and again():
                continue
            raise LakeTaken(
                f"another process wrote to {table.uri} at the same time, and was first: what this one made"
                " does not count. Let only one work on an app's lake at a time, and start this one again"
            ) from error
        finally:
            table.refresh()


class Lake:
    """All tables below one directory or URL, seen for one app.

    Args:
        root: a path, or a URL that ``deltalake`` knows: ``s3://``, ``gs://``, ``abfss://``.
        app: whose rows; may be left out while the lake has only one.

    Raises:
        LakeError: it was written by a release that had a format of its own, or its path cannot be read.
    """

    def __init__(self, session: Any, root: str, app: str = "") -> None:
        self.session, self.root = session, absolute(root)
        self._app = sink.safe_name(app)
        if wrong := sorted(_UNUSABLE & {*self.root}) if sink.is_local(self.root) else []:
            raise LakeError(
                f"{self.root} cannot be a lake: its path has {' '.join(wrong)}, which Spark or Delta take for"
                " something else: name another directory"
            )
        if sink.is_local(self.root) and any(Path(self.root, "journal").glob("batch=*")):
            raise LakeError(
                f"{self.root} was written by celery-poison before it used Delta, and cannot be read any more:"
                " ingest into a new lake, which takes all that the journal in Redis still holds"
            )
        self.journal = Table(session, f"{self.root}/journal", _PARTITIONS, known=LAKE)
        self.gaps_table = Table(session, f"{self.root}/gaps")

    @property
    def app(self) -> str:
        """Whose rows are read; raises LakeError where that is not clear."""
        if not self._app:
            found = self.apps()
            if len(found) != 1:
                having = f"those of {', '.join(found)}: say which, by --app-name" if found else "none yet"
                raise LakeError(f"whose rows of {self.root}? It has {having}")
            self._app = found[0]
        return self._app

    @app.setter
    def app(self, name: str) -> None:
        self._app = sink.safe_name(name)

    def apps(self) -> list[str]:
        """Return the names of the apps of which the lake has entries."""
        found = self.journal.delta.partitions() if self.journal.exists else []
        return sorted({str(each["app"]) for each in found})

    def of_no_journal(self) -> str:
        """Return the lake's own description if no journal belongs to it; empty for any other lake."""
        found = self.journal.delta.metadata().description if self.journal.exists else ""
        return found if found == GENERATED else ""

    def table(self, name: str, partitions: Sequence[str] = (), known: StructType | None = None) -> Table:
        """Return a derived table of the app."""
        return Table(self.session, f"{self.root}/tables/{self.app}/{name}", partitions, known=known)

    def entries(
        self,
        since: Position | None = None,
        healthy: bool | None = None,
        days: Sequence[str] = (),
        columns: Sequence[str] = (),
    ) -> Any:
        """Return the app's entries as a DataFrame of ``schema.JOURNAL``, of the versions that are known.

        Args:
            since: only those after this one.
            healthy: only runs that ended alive, or only the others, which are few and in files of their own.
            days: only of these, as ``2026-11-21``.
            columns: that are needed; the others may be null. Empty: all.
        """
        filters: list[tuple[str, str, Any]] = [("date", "in", list(days))] if days else []
        if since is not None:
            filters.append(("date", ">=", day(since.ms)))
            filters.append(("at", ">=", datetime.fromtimestamp(min(since.ms, LAST_MS) / 1000, UTC)))
        needed = {*columns, "v", *(("at", "seq") if since else ())} if columns else ()
        rows = self._rows(healthy, filters, sorted(needed)).select(*JOURNAL.names)
        rows = rows.where(F.col("v").isin(*VERSIONS))
        return rows if since is None else rows.where(after(since))

    def _rows(self, healthy: bool | None, filters: Filters = (), columns: Sequence[str] = ()) -> Any:
        if not self.journal.exists:
            return self.session.createDataFrame([], LAKE)
        asked = [("app", "=", self.app), *filters]
        if healthy is not None:
            asked.append(("healthy", "=", str(healthy).lower()))
        return self.journal.frame(asked, columns)

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return how many entries :meth:`entries` leaves out, by schema version: a newer release's."""
        if self.journal.exists and sink.within(self.journal.delta, "v", VERSIONS):
            return ()
        unknown = F.coalesce(~F.col("v").isin(*VERSIONS), F.lit(True))
        counts = self._rows(False, columns=["v"]).where(unknown).groupBy("v").count().collect()
        why = "schema version {}, which this release does not know"
        told = ((str(row["v"]) if row["v"] is not None else "none", row["count"]) for row in counts)
        return tuple(LeftOut("journal", why.format(version), count) for version, count in sorted(told))

    def gaps(self) -> tuple[Gap, ...]:
        """Return the gaps, whose entries never came into the lake; each once, even if committed twice."""
        if not self.gaps_table.exists:
            return ()
        rows = self.gaps_table.arrow(where=f"app = '{self.app}'").to_pylist()
        rows.sort(key=lambda row: [int(part) for part in row["upto"].split("-")])
        last = {row["after"]: Gap(row["after"], row["upto"], row["missing"], row["why"]) for row in rows}
        return tuple(last.values())

    def add_gap(self, gap: Gap) -> None:
        """Write a gap down; the same one again changes nothing that :meth:`gaps` tells."""
        rows = pa.Table.from_pylist([{"app": self.app, **asdict(gap)}], sink.arrow_schema(GAPS))
        write_deltalake(self.gaps_table.uri, rows, mode="append")
        self.gaps_table.refresh()


def absolute(root: str) -> str:
    """Return the root as every process understands it, without a slash at its end."""
    if sink.is_local(root):
        return str(Path(unquote(urlsplit(root).path) if root.startswith("file:") else root).absolute())
    return re.sub("^s3[an]://", "s3://", root).rstrip("/")


def after(position: Position) -> str:
    """Return the condition of an entry that comes after a position; its negation needs a time."""
    return f"unix_millis(at) > {position.ms} or (unix_millis(at) = {position.ms} and seq > {position.seq})"
