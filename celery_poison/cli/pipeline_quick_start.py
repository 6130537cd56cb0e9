"""``pipeline quick-start``: an archive of the classes that Java needs, once for an installation (NEW-7).

Java maps it into memory, and reads, checks and links no class anew. One of another Java, or of other jars, it
leaves aside.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa

from celery_poison.cli import pipeline_commands as commands
from celery_poison.errors import PoisonError
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.ingest.entries import by_words
from celery_poison.pipeline.lake import Lake, Position
from celery_poison.pipeline.schema import LAKE
from celery_poison.pipeline.session import (
    JAVA_OPTIONS,
    archive_of,
    find_java,
    java_process,
    open_session,
    suit,
)

_FIRST_MS, _HOUR_MS = 1_767_225_600_000, 3_600_000
#: What happens in each hour of the history: event, cause, outcome, incident, note.
_HOUR = (
    ("worker_started", "", "", "", "on node-1"),
    *[("finished", "", "success", "", "")] * 4,
    ("crashed", "signal:11", "exact", "", ""),
    ("crashed", "oom", "shared", "i{}", ""),
    ("interrupted", "worker_lost", "", "i{}", ""),
    ("worker_lost", "oom", "", "i{}", "gone"),
    ("failover_finished", "", "", "i{}", "flagged 1, put back 1"),
    ("cleared", "", "", "", ""),
    ("quarantined", "signal:11", "", "", "it died twice"),
)


def make(memory: str) -> Path:
    """Let Java report a small history, and write the archive of what that needed when it ends.

    Raises:
        PoisonError: it wrote none.
    """
    archive = archive_of(find_java())
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    options = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    spark = open_session("local[2]", memory, {"spark.driver.extraJavaOptions": options})
    java = java_process(spark)
    try:
        with tempfile.TemporaryDirectory() as place, redirect_stdout(StringIO()):
            _report(spark, Path(place))
    finally:
        spark.stop()
        os.kill(java, signal.SIGTERM)  # it writes the archive while it ends
        os.waitpid(java, 0)
    if not archive.is_file():
        raise PoisonError(
            "Java wrote no archive: it has none of its own classes (java -Xshare:dump makes it)"
        )
    return archive


def _report(session: Any, place: Path) -> None:
    lake = Lake(session, str(place / "lake"), "practice")
    lake.journal.create(LAKE)
    rows = by_words([*_entries()])
    rows = rows.append_column("app", pa.repeat(pa.scalar("practice"), rows.num_rows))
    lake.journal.write(pa.Table.from_batches([rows]), "practice", Position(ms=_FIRST_MS + 60 * _HOUR_MS))
    suit(session, rows.num_rows)
    derived = Derived(session, lake)
    commands.learn(derived, {"out": place / "report.html", "since": "1d"})


def _entries() -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
    for number in range(60 * len(_HOUR)):
        hour, nth = divmod(number, len(_HOUR))
        event, cause, outcome, incident, note = _HOUR[nth]
        name = f"m{hour // 2}-{nth % 6}"
        told = {"v": 3, "event": event, "id": name, "mid": name, "token": f"{name}.{number}"}
        told |= {
            "task": f"task_{nth % 3}",
            "queue": "celery",
            "worker": f"main@host-{hour % 3}/boot",
            "pid": nth,
        }
        told |= {"cause": cause, "outcome": outcome, "incident": incident.format(hour), "note": note}
        told |= {
            "deliveries": 1,
            "crashes": 1 + hour % 2,
            "runtime_ms": 60_000 * nth,
            "payload_bytes": 10**nth,
        }
        told |= {"fingerprint": f"{nth % 6:016x}", "shape": "int", "release": f"1.{hour // 24}"}
        entry = f"{_FIRST_MS + hour * _HOUR_MS + nth}-0"
        yield entry.encode(), {key.encode(): str(value).encode() for key, value in told.items()}
