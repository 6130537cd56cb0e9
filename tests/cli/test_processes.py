"""The command line as people run it: processes, pipes, exit statuses; with a worker that a task kills."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from celery_poison.cli.standalone import main
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.harness import ROOT, Fleet
from tests.desk.keeping import Keeper

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_SAP_7_a_poison_is_found_shown_released_and_failed_from_the_command_line(
    celery: Run, fleet: Fleet, keeper: Keeper
) -> None:
    failed = fleet.send("os_exit")
    keeper.keep(keeper.receive(), cause="exit:7")
    released = fleet.send("kill_child")

    def run(*arguments: str) -> Any:
        done = celery("poison", *arguments, "--json")
        assert (done.returncode, done.stderr) == (0, ""), done
        return json.loads(done.stdout)

    with fleet.worker(concurrency=1):
        wait_until(lambda: len(fleet.quarantine.list()) == 2, what=fleet.log_text)
        by_id = {message["id"]: message for message in run("list")}
        assert by_id[released.id]["cause"] == "signal:9"
        assert by_id[failed.id]["cause"] == "exit:7"
        assert run("show", released.id)["story"].startswith("It killed its process by SIGKILL.")
        fleet.marks.repair()
        assert run("release", released.id, "--note", "repaired")[0]["done"]
        assert run("fail", "--filter", "cause=exit:*", "--note", "hopeless")[0]["done"]
        assert released.get(timeout=PATIENCE) == "repaired"
        with pytest.raises(Exception, match="hopeless"):
            failed.get(timeout=PATIENCE)
        assert run("list") == []
        assert run("status")["workers"]["alive"] == 1
        (worker,) = run("workers")
        assert worker["alive"]


def test_without_a_terminal_there_are_no_control_codes(celery: Run) -> None:
    for verb in ("status", "doctor", "list", "--help"):
        done = celery("poison", verb)
        assert done.returncode == 0, done
        assert "\x1b" not in done.stdout + done.stderr
        assert "\r" not in done.stdout + done.stderr


def test_exit_statuses_reach_the_shell(celery: Run) -> None:
    assert celery("poison", "show", "nowhere").returncode == 1
    assert celery("poison", "release").returncode == 2
    away = celery("poison", "status", POISON_REDIS_URL="redis://127.0.0.1:1/0")
    assert away.returncode == 3
    assert "Traceback" not in away.stderr
    assert len(away.stderr.splitlines()) == 1


def test_a_reader_that_leaves_early_does_no_harm(fleet: Fleet, entry_points: Path) -> None:
    path = os.pathsep.join([str(entry_points), str(ROOT)])
    command = f"{sys.executable} -m celery -A tests.apps.fleet poison doctor | head -1"
    done = subprocess.run(
        ["sh", "-c", command],
        env=os.environ | fleet.environ() | {"PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.startswith("ok")
    assert "Traceback" not in done.stderr


def test_the_journal_is_followed_until_ctrl_c(fleet: Fleet, keeper: Keeper, entry_points: Path) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    path = os.pathsep.join([str(entry_points), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tests.apps.fleet", "poison", "journal", "tail", "-f"],
        env=os.environ | fleet.environ() | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where it is ignored, as under nohup or in a background job, it would be in this process, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        before = [process.stdout.readline() for _ in range(3)]
        assert "moved to quarantine" in before[-1]
        fleet.quarantine.release([fleet.quarantine.list()[0].mid], actor="ann")
        assert "released by ann" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors


def test_other_celery_commands_import_no_verb(entry_points: Path) -> None:
    """Every `celery` command loads this plugin."""
    seen = "import sys, celery.bin.celery; print(*(m for m in sys.modules if 'celery_poison.cli.' in m))"
    path = os.pathsep.join([str(entry_points), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", seen],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["celery_poison.cli.celery_command"]


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, 0), ("n", 1, 30)])
def test_on_a_terminal_many_messages_are_touched_after_a_question_and_a_bar_shows_how_far_it_is(
    answer: str, status: int, left: int, fleet: Fleet, keeper: Keeper, entry_points: Path
) -> None:
    for n in range(30):
        keeper.send_and_keep("fleet.healthy", n)
    here, there = pty.openpty()
    path = os.pathsep.join([str(entry_points), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tests.apps.fleet", "poison", "release", "--all"],
        env=os.environ | fleet.environ() | {"PYTHONPATH": path},
        cwd=ROOT,
        stdin=there,
        stdout=subprocess.PIPE,
        stderr=there,
    ) as process:
        os.write(here, f"{answer}\n".encode())
        stdout, _ = process.communicate(timeout=PATIENCE)
    os.close(there)
    told = os.read(here, 65536).decode()
    os.close(here)
    assert process.returncode == status
    assert "Release 30 messages? [y/N]" in told
    assert len(fleet.quarantine.list()) == left
    assert len(stdout.splitlines()) == 30 - left
    assert ("30/30" in told) == (left == 0)


# --- the console script ----------------------------------------------------------------------------


def test_the_console_script_points_to_the_verbs_of_an_app() -> None:
    told = CliRunner().invoke(main, ["--help"])
    assert told.exit_code == 0
    assert "celery -A proj poison" in told.stdout
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("celery-poison, version ")


def test_an_installation_without_its_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.places, "demo", "celery_poison.nothing.demo:demo")
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "the demo is not installed" in result.stderr


def test_the_demo_is_offered() -> None:
    told = CliRunner().invoke(main, ["demo", "--help"])
    assert told.exit_code == 0
    assert "--plain" in told.stdout


def test_celery_inspect_tells_what_a_worker_knows_without_arguments(
    celery: Run, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.gated", 4711)
    fleet.quarantine.release([mid])
    with fleet.worker(concurrency=1):
        fleet.await_that(lambda: fleet.marks.count("gated", "start"), "it runs, as a suspect")
        (node,) = [worker.node for worker in fleet.quarantine.queries.workers(60_000)]

        def asked(command: str, *more: str) -> Any:
            done = celery("inspect", command, *more, "--json", "-d", node, "-t", str(int(PATIENCE)))
            assert done.returncode == 0, done
            assert "4711" not in done.stdout
            return json.loads(done.stdout)[node]

        (running,) = asked("poison_running")
        assert (running["task"], running["stage"]) == ("fleet.gated", "running")
        assert running["candidate"] and running["alone"] and running["crashes"] == 2
        assert asked("poison_candidates") == [running] and asked("poison_running", "0") == []
        status = asked("poison_status")
        assert status["worker"].startswith(node) and status["watches"] and status["queues"] == "celery"
        fleet.marks.open_gate()
        fleet.await_that(lambda: fleet.marks.count("gated", "end"), "it ends")
