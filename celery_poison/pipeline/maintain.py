"""What keeps a lake small, quick and lawful, without Spark. Ingest and readers may go on meanwhile.

Nothing that a reader may still be reading is deleted: files that were replaced stay until :func:`vacuum`
finds them older than the longest reader takes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from celery_poison.pipeline.lake import Lake, LakeError, Position, Table, beside_others
from celery_poison.pipeline.window import DAY_MS

#: A condition names no more ids: deltalake does not bear tens of thousands.
_AT_ONCE = 1_000


def compact(table: Table) -> int:
    """Put small files together, in one commit; return how many files became fewer.

    Where somebody else changes the same files, it is left for the next time.
    """
    try:
        told = table.delta.optimize.compact()
    except CommitFailedError:
        return 0
    finally:
        table.refresh()
    return int(told["numFilesRemoved"]) - int(told["numFilesAdded"])


def vacuum(table: Table, keep_hours: float = 24.0) -> int:
    """Delete files that no version since so many hours needs, and what killed tasks left; return how many.

    The table's log is summed up in a checkpoint, and what of it is older than a month goes. A reader that
    takes longer than ``keep_hours`` fails, and says which file it misses. Older versions cannot be read or
    restored any more.
    """
    gone = table.delta.vacuum(
        retention_hours=round(keep_hours), dry_run=False, enforce_retention_duration=False, full=True
    )
    table.delta.create_checkpoint()
    table.delta.cleanup_metadata()
    table.refresh()
    return len(gone)


def keep_days(table: Table, days: int) -> int:
    """Remove the rows of days that are over for longer than so many; return how many rows."""
    if "date" not in table.schema.names:
        return 0
    oldest = (datetime.now(UTC) - timedelta(days=days)).date()
    return _delete(table, f"date < CAST('{oldest.isoformat()}' AS DATE)")


def forget(lake: Lake, tables: list[Table], ids: list[str]) -> int:
    """Remove every row of some task ids; return how many entries of the journal went.

    Counts that hold no id stay until the tables are made anew from the day on which the first of them began,
    which the next command does that reads them. The rows are out of the files themselves only after a
    :func:`vacuum` with ``keep_hours=0``.

    Args:
        tables: the journal and all that is made of it.
    """
    quoted = ["'" + each.replace("'", "''") + "'" for each in ids]
    pieces = [quoted[begin : begin + _AT_ONCE] for begin in range(0, len(ids), _AT_ONCE)]
    wanted = [f"id IN ({', '.join(piece)})" for piece in pieces]
    told = [row for each in wanted for row in lake.journal.arrow(["at", "runtime_ms"], each).to_pylist()]
    began = [row["at"].timestamp() * 1000 - max(0, row["runtime_ms"] or 0) for row in told if row["at"]]
    holding = [table for table in tables if "id" in table.schema.names]
    gone = [sum(_delete(table, each) for each in wanted) for table in holding]
    since = max(0, int(min(began, default=0))) // DAY_MS * DAY_MS
    for table in tables[1:] if told else ():
        for app in lake.apps():
            if (position := table.position(app)) and position.ms >= since:
                table.commit([], app, replace(position, ms=max(0, since - 1), seq=0))
    return gone[0]


def _delete(table: Table, predicate: str) -> int:
    # An ingest that puts small files together may be first: the same rows are deleted then.
    told = beside_others(table, lambda: table.delta.delete(predicate))
    return int(told.get("num_deleted_rows") or 0)


def restore(lake: Lake, version: int) -> list[str]:
    """Make the journal what it was at a version: ingest goes on from there, and tables are made anew.

    Returns:
        What had been deleted since that version and is back now, as predicates.

    Raises:
        LakeError: there is no such version, or its files are gone.
    """
    try:
        then = Table(None, lake.journal.uri, version=version)
        carried: list[Transaction] = []
        for app in lake.apps():
            now, old = (table.position(app) or Position() for table in (lake.journal, then))
            carried += replace(old, epoch=now.epoch + 1).transactions(app)
        back = _deleted_since(lake.journal, version)
        lake.journal.delta.restore(version, commit_properties=CommitProperties(app_transactions=carried))
    except (CommitFailedError, DeltaError) as error:
        raise LakeError(f"version {version} of the journal cannot be restored: {error}") from error
    lake.journal.refresh()
    return back


def _deleted_since(table: Table, version: int) -> list[str]:
    newer = (each for each in table.delta.history() if each["version"] > version)
    deletions = (each for each in newer if each["operation"] == "DELETE")
    return [str(each.get("operationParameters", {}).get("predicate")) for each in deletions]


def history(table: Table, limit: int = 20) -> list[dict[str, Any]]:
    """Return the newest commits, the newest first: version, time, what was done."""
    return [
        {
            "version": each["version"],
            "at": datetime.fromtimestamp(each["timestamp"] / 1000, UTC).isoformat(" ", "seconds"),
            "operation": each["operation"],
            "told": each.get("celery_poison", ""),
        }
        for each in table.delta.history(limit)
    ]
