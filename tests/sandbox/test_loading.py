"""The cell has the user's app, however the worker came by it; if it cannot have it, the pool serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_poison.sandbox.child import origin_of
from celery_poison.sandbox.trial import Origin
from celery_poison.testing import wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import ROOT
from tests.sandbox.apps import LOADS_ONCE
from tests.sandbox.conftest import Court

SCRIPT = ROOT / "tests" / "sandbox" / "script.py"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/bin/celery", "-A", "proj", "worker"], "proj"),
        (["/bin/celery", "--app=proj.celery:app", "worker"], "proj.celery:app"),
        (["/lib/celery/__main__.py", "-Aproj", "worker"], "proj"),
        (["manage.py", "-A", "proj"], ""),
    ],
)
def test_the_command_line_names_the_app(monkeypatch: Any, argv: list[str], name: str) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.delenv("APP", raising=False)
    named = origin_of(Celery("z", set_as_current=False))
    assert (named.name if named else "") == name


def test_an_app_in_a_module_is_found_by_its_name(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest"])
    app = Celery("x", set_as_current=False)
    monkeypatch.setattr("tests.sandbox.apps.application", app, raising=False)
    assert origin_of(app) == Origin(name="tests.sandbox.apps:application")
    assert origin_of(Celery("y", set_as_current=False)) is None


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads"]))
def test_what_is_set_up_when_a_worker_begins_is_there_in_a_cell_too(court: Court, pool: str) -> None:
    with court.worker(pool=pool) as worker:
        in_cell = court.suspect("trial.tells").get(timeout=PATIENCE)
        in_pool = court.app.tasks["trial.tells"].delay().get(timeout=PATIENCE)
        assert in_cell["in_cell"] and not in_pool["in_cell"]
        assert in_cell["prepared"] == in_pool["prepared"] == [worker.hostname]


def _run(court: Court, *command: str) -> Any:
    import os

    log = (court.directory / "run.log").open("w")
    return subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, **court.environ()}, stdout=log, stderr=log
    )


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads"]))
def test_NEW_1_an_app_that_a_script_makes_is_loaded_without_running_it(court: Court, pool: str) -> None:
    """Its tasks are called as in the script, and its own `worker_main()` is not called."""
    process = _run(court, str(SCRIPT), "worker", f"--pool={pool}", "-c2", "-l", "INFO")
    try:

        @court.app.task(name="fleet.of_script", shared=False)
        def of_script() -> None: ...

        from celery_poison import guarded

        guarded(of_script)
        assert court.suspect("fleet.of_script").get(timeout=PATIENCE) == ["fleet.of_script", True]
        court.await_acquittal()
    finally:
        process.terminate()
        process.wait(PATIENCE)


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

@guarded
@shared_task
def where():
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        return "sandbox.watcher" in file.read()
""",
}


def _worker_of_project(court: Court, tmp_path: Path, *command: str) -> Any:
    import os

    for name, text in PROJECT.items():
        path = tmp_path / "proj" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    log = (court.directory / "run.log").open("w")
    env = {**os.environ, **court.environ(), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *command], cwd=tmp_path, env=env, stdout=log, stderr=log)


EMBEDDED = """
import sys; sys.path.insert(0, "")
from proj.celery import app
app.Worker(pool="threads", concurrency=2, loglevel="INFO").start()
"""


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "celery", "-A", "proj", "worker", "-c2", "-l", "INFO"),
        ("-m", "celery", "--app=proj.celery:app", "worker", "-P", "solo", "-l", "INFO"),
        ("-c", EMBEDDED),
    ],
    ids=["-A", "--app", "embedded"],
)
def test_NEW_1_a_project_with_lazy_configuration_and_autodiscovery_is_loaded(
    court: Court, tmp_path: Path, command: tuple[str, ...]
) -> None:
    @court.app.task(name="proj.shop.tasks.where", shared=False)
    def where() -> None: ...

    from celery_poison import guarded

    guarded(where)
    court.app.main = "proj"
    process = _worker_of_project(court, tmp_path, *command)
    try:
        # Sent before anybody knows the ledger: its first worker says whose it is.
        wait_until(lambda: "ready." in _log(court), what=lambda: _log(court))
        assert court.suspect("proj.shop.tasks.where").get(timeout=PATIENCE) is True, _log(court)
        court.await_acquittal()
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _log(court: Court) -> str:
    return (court.directory / "run.log").read_text()


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads"]))
def test_an_app_that_cannot_be_loaded_anew_costs_its_suspects_nothing(court: Court, pool: str) -> None:
    first, second = (court.suspect("trial.tells", n) for n in range(2))
    with court.worker(pool=pool, env={LOADS_ONCE: "1"}) as worker:
        for suspect in (first, second):
            told = suspect.get(timeout=PATIENCE)
            assert (told["in_cell"], told["on_trial"]) == (False, True)
        court.await_acquittal()
        assert worker.log_text().count("cannot be tried in cells") == 1
    assert len(court.events("crashed")) == 2, "those by which they became suspects"
