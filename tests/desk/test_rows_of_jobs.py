"""The examples of a job's row that never says RUNNING for ever, with real workers and real deaths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from celery_poison.testing import Worker, wait_until
from tests import PATIENCE
from tests.apps.harness import ROOT

EXAMPLES = ROOT / "examples"


class Jobs:
    """One of the examples, with a database of its own; asked in a process of its own, as its users would."""

    def __init__(self, module: str, redis_url: str, directory: Path) -> None:
        database = str(directory / "jobs.sqlite3")
        self.module, self.directory = module, directory
        self.env = {
            "JOBS_BROKER": redis_url,
            "JOBS_DATABASE": f"sqlite:///{database}" if "sqlalchemy" in module else database,
            "C_FORCE_ROOT": "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(EXAMPLES))),
        }

    def worker(self, name: str, **env: str) -> Worker:
        log = self.directory / f"{name}.log"
        return Worker(self.module, name=name, concurrency=2, env=self.env | env, cwd=EXAMPLES, log_path=log)

    def ask(self, what: str) -> object:
        program = f"import json, {self.module} as jobs; print(json.dumps({what}))"
        told = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | self.env,
            cwd=EXAMPLES,
            capture_output=True,
            text=True,
        )
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    def await_states(self, wanted: dict[str, str]) -> None:
        wait_until(
            lambda: self.ask("jobs.states()") == wanted, PATIENCE, what=lambda: str(self.ask("jobs.states()"))
        )


@pytest.mark.parametrize("module", ["jobs_sqlalchemy", "jobs_django"])
def test_the_row_of_a_job_says_what_became_of_it_whatever_its_task_died_of(
    module: str, redis_url: str, tmp_path: Path
) -> None:
    pytest.importorskip(module.removeprefix("jobs_"))
    jobs = Jobs(module, redis_url, tmp_path)
    release = (
        "[jobs.add(9, 'good.csv'), [o.error for q in [__import__('celery_poison').Quarantine(jobs.app)]"
        " for o in q.release([r.mid for r in q.list()])]]"
    )
    with jobs.worker("w1"):
        jobs.ask("[jobs.add(1, 'good.csv'), jobs.add(2, 'evil.csv')]")
        jobs.await_states({"1": "DONE", "2": "QUARANTINED"})
    with jobs.worker("w2", JOBS_REPAIRED="1"):
        assert jobs.ask(release)
        jobs.await_states({"1": "DONE", "2": "DONE", "9": "DONE"})
