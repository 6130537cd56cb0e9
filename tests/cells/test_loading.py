"""A cell has the user's app as its worker has it, however that came by it; else the pool serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_poison.cli.doctor import examine
from celery_poison.testing import wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import ROOT
from tests.cells.apps import OPENS
from tests.cells.conftest import Court

SCRIPT = ROOT / "tests" / "cells" / "script.py"


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads", "gevent", "eventlet", "solo"]))
def test_NEW_1_a_cell_has_what_a_process_of_the_pool_has(court: Court, pool: str) -> None:
    """The command line, a name and an index, and what was prepared once, with its worker."""
    with court.worker(pool=pool) as worker:
        in_cell = court.suspect("trial.tells").get(timeout=PATIENCE)
        in_pool = court.app.tasks["trial.tells"].delay().get(timeout=PATIENCE)
        assert in_cell["in_cell"] and not in_pool["in_cell"]
        assert in_cell["prepared"] == in_pool["prepared"] == [[worker.hostname, worker.main_pid]]
        assert in_cell["argv"] == in_pool["argv"]
        assert in_cell["process"].startswith("ForkPoolWorker-") and in_cell["index"] == 0
        for event in ("process_init", "process_shutdown"):
            court.await_that(
                lambda event=event: in_cell["pid"] in {mark.pid for mark in court.marks.all("loaded", event)},
                f"worker_{event} was sent in the cell",
            )


def _run(court: Court, *command: str, cwd: Path = ROOT) -> subprocess.Popen[bytes]:
    log = (court.directory / "run.log").open("w")
    env = {**os.environ, **court.environ(), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *command], cwd=cwd, env=env, stdout=log, stderr=log)


@contextmanager
def _running(court: Court, *command: str, cwd: Path = ROOT) -> Iterator[None]:
    process = _run(court, *command, cwd=cwd)
    try:
        # Sent before anybody knows the ledger: its first worker says whose it is.
        wait_until(lambda: "ready." in _log(court), what=lambda: _log(court))
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _log(court: Court) -> str:
    return (court.directory / "run.log").read_text()


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads"]))
def test_NEW_1_the_app_of_a_script_is_in_a_cell_as_it_is_in_its_worker(court: Court, pool: str) -> None:
    with _running(court, str(SCRIPT), "worker", f"--pool={pool}", "-c2", "-l", "INFO"):

        @court.app.task(name="fleet.of_script", shared=False)
        def of_script() -> None: ...

        from celery_poison import guarded

        guarded(of_script)
        assert court.suspect("fleet.of_script").get(timeout=PATIENCE) == ["fleet.of_script", True]
        court.await_acquittal()


PROJECT = {
    "__init__.py": "",
    "celery.py": """
import os
from celery import Celery
app = Celery("proj")
app.config_from_object("proj.settings", namespace="CELERY")
app.autodiscover_tasks(["proj.shop"])
""",
    "settings.py": """
import os
CELERY_BROKER_URL = os.environ["BROKER_URL"]
CELERY_RESULT_BACKEND = os.environ["RESULT_BACKEND"]
CELERY_POISON_HEARTBEAT_INTERVAL = 0.3
CELERY_POISON_ACTIVATION_INTERVAL = 1.0
""",
    "shop/__init__.py": "",
    "shop/tasks.py": """
import os
from celery import shared_task
from celery_poison import guarded
from celery_poison.basics import procfs

@guarded
@shared_task
def where():
    return procfs.name(os.getppid()) == "poison-watcher"
""",
}

WORKS = 'app.Worker(pool="threads", concurrency=2, loglevel="INFO").start()'
EMBEDDED = """
import sys; sys.path.insert(0, "")
from proj.celery import app
"""
#: A worker that is a thread of another program: no process of it may be forked.
IN_A_THREAD = f"""{EMBEDDED}
import threading
from celery.apps.worker import Worker
Worker.install_platform_tweaks = lambda self, worker: None
thread = threading.Thread(target=lambda: {WORKS}, daemon=True)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("command", "in_cell"),
    [
        (("-m", "celery", "-A", "proj", "worker", "-c2", "-l", "INFO"), True),
        (("-m", "celery", "--app=proj.celery:app", "worker", "-P", "solo", "-l", "INFO"), True),
        (("-c", EMBEDDED + WORKS), True),
        (("-c", IN_A_THREAD), False),
    ],
    ids=["-A", "--app", "embedded", "in a thread"],
)
def test_NEW_1_a_project_with_lazy_configuration_and_autodiscovery_is_in_a_cell(
    court: Court, tmp_path: Path, command: tuple[str, ...], in_cell: bool
) -> None:
    @court.app.task(name="proj.shop.tasks.where", shared=False)
    def where() -> None: ...

    from celery_poison import guarded

    guarded(where)
    court.app.main = "proj"
    for name, text in PROJECT.items():
        path = tmp_path / "proj" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with _running(court, *command, cwd=tmp_path):
        assert court.suspect("proj.shop.tasks.where").get(timeout=PATIENCE) is in_cell, _log(court)
        court.await_acquittal()
        assert _log(court).count("this worker is a thread of another program") == (not in_cell)


@pytest.mark.parametrize(
    ("pool", "when"),
    sampled([("threads", "worker_init"), ("threads", "import")], [("gevent", "worker_init")]),
)
def test_NEW_1_a_connection_that_was_opened_before_the_first_task_is_in_no_cell(
    court: Court, pool: str, when: str
) -> None:
    """A pool of threads does not fork, and its app need not bear that: it is loaded anew where that helps."""
    with court.worker(pool=pool, env={OPENS: when}) as worker:
        told = court.suspect("trial.tells").get(timeout=PATIENCE)
        assert told["in_cell"] == (when == "worker_init")
        assert told["argv"] == court.app.tasks["trial.tells"].delay().get(timeout=PATIENCE)["argv"]
        court.await_acquittal()
        # gevent looks names up in threads.
        has = "threads" if pool == "gevent" else "open connections"
        assert worker.log_text().count(f"has {has} before any task") == 1
        if when == "worker_init":
            said = [finding.said for finding in examine(court.app) if finding.check == "trials"]
            assert said == [f"{worker.hostname}: cells load the app anew: it has {has} before any task"]
        assert worker.log_text().count("cannot be tried in cells") == 2 * (when == "import")


@pytest.mark.parametrize("pool", sampled(["threads"], ["prefork", "gevent", "eventlet", "solo"]))
def test_a_nursery_that_ends_costs_its_suspects_nothing(court: Court, pool: str) -> None:
    """A trial that runs goes on; the next suspects run in the emptied pool."""
    running = court.suspect("trial.waits")
    with court.worker(pool=pool) as worker:
        court.await_start("waits")
        (nursery,) = court.nurseries()
        os.kill(nursery, signal.SIGKILL)
        court.marks.repair()
        assert running.get(timeout=PATIENCE) == "repaired"
        for n in range(2):
            told = court.suspect("trial.tells", n).get(timeout=PATIENCE)
            assert (told["in_cell"], told["on_trial"]) == (False, True)
        court.await_acquittal()
        assert worker.log_text().count("cannot be tried in cells") == 1
        why = "suspects run alone in its pool, not in cells: the process that forks them has ended"
        court.await_that(
            lambda: any(finding.said == f"{worker.hostname}: {why}" for finding in examine(court.app)),
            "doctor says so",
        )
    assert len(court.events("crashed")) == 3, "those by which they became suspects"


@pytest.mark.matrix
def test_prefork_forks_another_nursery_in_the_place_of_one_that_has_ended(court: Court) -> None:
    with court.worker(env={"LIVED": "0"}) as worker:
        worker.wait_ready()
        for n in range(3):
            (nursery,) = court.nurseries()
            assert court.suspect("trial.tells", n).get(timeout=PATIENCE)["in_cell"]
            os.kill(nursery, signal.SIGKILL)
            court.await_that(lambda: not court.nurseries(), "it has ended")
            assert court.suspect("trial.tells", 9 + n).get(timeout=PATIENCE)["in_cell"]
        assert not worker.log_text().count("cannot be tried in cells")
    court.await_that(lambda: not court.nurseries(), "the nursery ends with its worker")


@pytest.mark.parametrize("pool", sampled(["threads", "gevent"], ["prefork", "eventlet", "solo"]))
def test_a_nursery_that_hangs_is_killed_and_its_suspects_run_in_the_emptied_pool(
    court: Court, pool: str
) -> None:
    with court.worker(pool=pool, env={"SETTING_UP": "2"}) as worker:
        worker.wait_ready()
        (nursery,) = court.nurseries()
        os.kill(nursery, signal.SIGSTOP)
        suspects = [court.suspect("trial.tells", n) for n in range(2)]
        assert all(not suspect.get(timeout=PATIENCE)["in_cell"] for suspect in suspects)
        assert worker.log_text().count("no cell in 2 s: it is killed") == 1
        court.await_acquittal()


def test_NEW_25_suspects_whose_cells_hang_in_their_init_run_in_the_emptied_pool_after_seconds(
    court: Court, tmp_path: Path
) -> None:
    court.settings["worker_proc_alive_timeout"] = 1.5
    env = {"READY": "1", "BAD_INIT": str(bad := tmp_path / "bad")}
    with court.worker(env=env, args=["-I", "tests.fleet.wedged"]) as worker:
        worker.wait_ready()
        assert court.app.tasks["trial.tells"].delay(9).get(timeout=PATIENCE), "a process of the pool is up"
        bad.touch()
        suspects = [court.suspect("trial.tells", n) for n in range(2)]
        assert all(not suspect.get(timeout=PATIENCE)["in_cell"] for suspect in suspects)
        assert "not ready for a task after 1.5 s: see worker_process_init; tasks go on" in worker.log_text()
        court.await_acquittal()
