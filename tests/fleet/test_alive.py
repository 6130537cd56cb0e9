"""`celery poison alive`: whether only a restart is the cure, asked of nothing but the worker's own file."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_poison.testing import Worker
from tests import PATIENCE
from tests.cli.conftest import Console
from tests.fleet.crew import Watched, frozen

#: Seconds; a worker in these tests is beyond help after the second.
SETTINGS = {"poison_activation_interval": 6.0, "poison_restart_after": 8.0}
WEDGED = ["-I", "tests.fleet.wedged"]

matrix = pytest.mark.matrix


class Scene:
    """A fleet whose workers can be wedged, with a temporary directory of its own.

    Attributes:
        stop: a file; while it is there, what was wedged stays so.
    """

    def __init__(self, crew: Watched, directory: Path) -> None:
        self.crew, self.console, self.stop = crew, Console(crew.app), directory / "stop"
        (directory / "tmp").mkdir()
        self.env = {"TMPDIR": str(directory / "tmp"), "OWN_TIMER": str(directory / "own")}
        self.own_timer = directory / "own"

    def worker(self, name: str, **options: Any) -> Worker:
        env = self.env | options.pop("env", {})
        return self.crew.worker(name, args=WEDGED, env=env, **options)

    def probe(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Ask as Kubernetes does."""
        command = [sys.executable, "-m", "celery_poison.alive", "--json", *words]
        done = subprocess.run(command, env=os.environ | self.env, capture_output=True, timeout=PATIENCE)
        assert done.stderr == b""
        return done.returncode, json.loads(done.stdout)

    def wedge(self, how: str, node: str) -> None:
        self.stop.touch()
        self.crew.app.control.broadcast(
            how, destination=[node], arguments={"path": str(self.stop)}, reply=False
        )

    def await_dead(self, node: str) -> str:
        """Wait until the probe says that only a restart helps; return why."""
        reasons: list[str] = []

        def is_dead() -> bool:
            status, answered = self.probe(node)
            reasons[:] = answered["reasons"]
            return status == 1

        self.crew.await_that(is_dead, f"{node} is beyond help")
        return reasons[0]

    def await_alive(self, node: str) -> None:
        self.crew.await_that(lambda: self.probe("--strict", node)[0] == 0, f"{node} is alive again")

    def row(self, node: str) -> dict[str, Any]:
        return next(row for row in self.console.json("workers") if row["node"] == node)


@pytest.fixture
def scene(new_crew: Callable[..., Watched], broker_url: str, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(new_crew(broker_url, **SETTINGS), tmp_path)
    yield scene
    scene.stop.unlink(missing_ok=True)


def test_NEW_25_what_holds_the_interpreter_is_named_by_line_and_only_a_restart_is_the_cure(
    scene: Scene,
) -> None:
    crew = scene.crew
    scene.stop.touch()
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(address := str(scene.stop.with_name("systemd")))
    systemd.settimeout(PATIENCE)
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}
    with scene.worker("w1", pool="threads", env=env) as w1, scene.stop.open() as held, systemd:
        w1.wait_ready()
        assert systemd.recv(100) == b"WATCHDOG=1"
        assert scene.probe("--strict") == (0, {"alive": True, "workers": ["w1@test"], "reasons": []})
        fcntl.flock(held, fcntl.LOCK_EX)
        (result,) = crew.hold(1)
        crew.await_held(w1, 1)
        scene.wedge("hold_interpreter", "w1@test")
        with scene.worker("w2") as w2:
            w2.wait_ready()
            (lost,) = crew.await_events("worker_lost")
            assert lost["cause"] == "frozen"
            assert "hold_interpreter (" in json.loads(lost["evidence"])["stack"][0]
            (interrupted,) = crew.await_events("interrupted")
            assert json.loads(interrupted["evidence"])["stack"] == json.loads(lost["evidence"])["stack"]
            assert "The event loop of its worker stood in hold_interpreter (" in scene.console.out(
                "show", result.id, "--all"
            )
            why = scene.await_dead("w1@test")
            assert "it has not moved for" in why and "cure: restart it" in why
            assert scene.probe("w2@test")[0] == 0, "the other one works"

            fcntl.flock(held, fcntl.LOCK_UN)
            scene.await_alive("w1@test")
            crew.await_that(lambda: scene.row("w1@test")["stack"], "it says what froze it")
            row = scene.row("w1@test")
            assert "hold_interpreter (" in row["stack"][0] and not row["stopping"]
            assert "w1@test: its event loop stands, or stood lately, in hold_i" in scene.console.out(
                "workers"
            )
            crew.let_go()
            assert result.get(timeout=PATIENCE) and crew.no_strikes()
    assert "most recent call first" in scene.own_timer.read_text(), "a timer of the user's own goes off"


def test_NEW_25_a_worker_whose_loop_stands_is_restarted_and_nobody_is_to_blame(scene: Scene) -> None:
    crew = scene.crew
    with scene.worker("w1") as w1:
        (result,) = crew.hold(1)
        crew.await_held(w1, 1)
        scene.wedge("hold_loop", "w1@test")
        crew.await_that(lambda: scene.row("w1@test")["stack"], "it says where its loop stands")
        assert scene.probe()[0] == 0, "a callback may take its time"
        why = scene.await_dead("w1@test")
        assert "its event loop has stood for" in why and "at hold_loop (" in why
        crew.await_that(lambda: scene.row("w1@test")["stopping"], "it knows that it is about to be killed")
        w1.kill_group()
    with scene.worker("w1") as again:
        (lost,) = crew.await_events("worker_lost")
        assert lost["cause"] == "eviction" and json.loads(lost["evidence"])["asked"] == "alive"
        crew.await_held(again, 1)
        assert "The probe `alive` had called the worker beyond help." in scene.console.out(
            "show", result.id, "--all"
        )
        crew.let_go()
        assert result.get(timeout=PATIENCE) and crew.no_strikes()
        assert scene.probe("--strict", "w1@test")[0] == 0


@matrix
@pytest.mark.parametrize("how", ["hold_log", "slots", "children", "stopped"])
def test_NEW_25_whatever_only_a_restart_cures_is_called_so(scene: Scene, how: str) -> None:
    pool = "threads" if how == "slots" else "prefork"
    env = {"BAD_INIT": str(scene.stop)} if how == "children" else {}
    with scene.worker("w1", pool=pool, concurrency=2, env=env) as w1:
        w1.wait_ready()
        assert scene.probe("--strict")[0] == 0
        if how == "hold_log":
            scene.wedge(how, "w1@test")
            scene.crew.hold(1)  # a line of the log
            assert "its event loop has stood for" in scene.await_dead("w1@test")
        elif how == "slots":
            for n in range(2):
                scene.crew.app.tasks["fleet.holds"].apply_async((n,), time_limit=1)
            assert "every slot has been held for" in scene.await_dead("w1@test")
        elif how == "children":
            scene.stop.touch()
            for pid in w1.child_pids():
                os.kill(pid, signal.SIGKILL)
            assert "no process of its pool has come up for" in scene.await_dead("w1@test")
        else:
            with frozen(w1.main_pid):
                assert "it has not moved for" in scene.await_dead("w1@test")
        scene.stop.unlink(missing_ok=True)
        scene.crew.let_go()
        scene.await_alive("w1@test")
