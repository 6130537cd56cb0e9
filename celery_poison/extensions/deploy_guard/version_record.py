"""First runs in the ledger, one key a task and version. All raise ``LedgerUnavailable`` without Redis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from celery_poison.extensions.deploy_guard.first_runs import FirstRuns, Over
from celery_poison.extensions.holds.pauses import Scope, field_of
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Code
from celery_poison.model import Start

#: Seconds for which first runs are remembered after their last change.
KEEP = 7 * 24 * 3600


class FirstRunsSeen(NamedTuple):
    """The first runs as one look found them.

    Attributes:
        raw: as it stands in the ledger; a change is refused if that is not there any more.
        now: ms since 1970, by Redis' clock.
        lives: the run whose turn it is has a start on record.
    """

    raw: bytes
    runs: FirstRuns
    now: int
    lives: bool

    @property
    def is_busy(self) -> bool:
        return self.runs.is_busy(self.now, lives=self.lives)


class VersionRecord:
    """The first runs of the tasks of one version."""

    def __init__(self, ledger: Ledger, version: str) -> None:
        self._ledger = ledger
        self.version = version

    def look(self, task: str) -> FirstRunsSeen:
        return self.look_many([task])[task]

    def look_many(self, tasks: Iterable[str]) -> dict[str, FirstRunsSeen]:
        """Look at several tasks, in two round trips at most."""
        names = [*tasks]
        if not names:
            return {}
        client, keys = self._ledger.client, self._ledger.keys
        with clear_errors("reading the first runs of a task"):
            pipe = client.pipeline(transaction=False)
            for name in names:
                pipe.get(keys.of("first_runs", f"{self.version} {name}"))
            pipe.time()
            *raws, (seconds, micros) = pipe.execute()
            found = [FirstRuns.decode(raw or b"") for raw in raws]
            mids = [runs.mid for runs in found if runs.token]
            starts: Any = dict(zip(mids, client.hmget(keys.running, mids), strict=True)) if mids else {}
        now, seen = seconds * 1000 + micros // 1000, {}
        for name, raw, runs in zip(names, raws, found, strict=True):
            start = starts.get(runs.mid) if runs.token else None
            lives = start is not None and Start.decode(start).token == runs.token
            seen[name] = FirstRunsSeen(raw or b"", runs, now, lives)
        return seen

    def change(
        self, task: str, seen: FirstRunsSeen, runs: FirstRuns, *, cause: str = "", note: str = ""
    ) -> bool:
        """Replace what was seen; False if another was faster. Too many deaths pause the task (NEW-18).

        Args:
            cause, note: of the last death: what it died of, and that with its place in the code.
        """
        version, field = self.version, ""
        if runs.over is Over.DEATHS:
            field = field_of(Scope.VERSION, task, version)
        code, *_ = self._ledger.scripts.call(
            f"{__package__}:first_runs",
            {"first_runs": self._ledger.keys.of("first_runs", f"{version} {task}")},
            seen=seen.raw,
            runs=runs.encode(),
            keep_s=KEEP,
            field=field,
            task=task,
            code_version=version,
            cause=cause,
            note=note,
            journalled=f"{version} kills {task} ({note})",
        )
        return code is Code.OK

    def lift(self, task: str, journalled: str) -> bool:
        """End the pause, and let the first runs begin anew; False if a person was faster.

        Args:
            journalled: the journal's note.
        """
        code, *_ = self._ledger.scripts.call(
            f"{__package__}:lift",
            {"first_runs": self._ledger.keys.of("first_runs", f"{self.version} {task}")},
            field=field_of(Scope.VERSION, task, self.version),
            task=task,
            code_version=self.version,
            journalled=journalled,
        )
        return code is Code.OK
