"""The tools of the other tests: they must not lie, and must not leave anything behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import redis

from celery_poison.basics import procfs
from celery_poison.testing import RedisServer, Supervisor, WaitTimeout, Worker, wait_until


class Script(Worker):
    """A Worker whose process is a line of Python instead of Celery: starts at once."""

    line = "import time; time.sleep(600)"

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.line]


class DiesAtOnce(Script):
    line = "raise SystemExit(3)"


FORKS = "import os, time; os.fork(); time.sleep(600)"


def test_waiting_in_vain_says_for_what_and_what_was_seen_last() -> None:
    with pytest.raises(WaitTimeout, match=r"three apples \(last seen: 0\)"):
        wait_until(lambda: 0, timeout=0.05, what="three apples")


def test_waiting_returns_what_came_true() -> None:
    answers = iter([0, 0, 7])
    assert wait_until(lambda: next(answers)) == 7


def test_a_redis_server_comes_back_on_the_same_port(redis_server: RedisServer) -> None:
    with RedisServer() as server:
        assert server.port != redis_server.port
        server.client().set("a", "1")
        server.restart()
        assert server.client().get("a") is None
        server.kill()
        with pytest.raises(redis.ConnectionError):
            server.client().ping()
        server.start()
        assert server.client().ping()


def test_a_paused_redis_server_answers_nobody_until_it_is_resumed() -> None:
    with RedisServer() as server:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            server.client(socket_timeout=0.1).ping()
        server.resume()
        assert server.client().ping()


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="maxmemory"):
        RedisServer(options={"maxmemory": "plenty"}).start()


def test_killing_a_group_takes_the_children_and_nobody_else(tmp_path: Path) -> None:
    worker = Script("", log_path=tmp_path / "log")
    worker.line = FORKS
    with worker:
        wait_until(worker.child_pids, what="the child is there")
        worker.kill_group()
        assert worker.wait() == -signal.SIGKILL
        wait_until(lambda: not worker.session_pids(), what="all are gone")


def test_a_dead_main_process_takes_its_children_with_it_when_it_is_waited_for(tmp_path: Path) -> None:
    worker = Script("", log_path=tmp_path / "log")
    worker.line = FORKS
    with worker:
        (child,) = wait_until(worker.child_pids, what="the child is there")
        worker.kill_main()
        wait_until(lambda: not worker.is_alive())
        assert procfs.process(child) is not None
        worker.wait()
        wait_until(lambda: not worker.session_pids(), what="all are gone")


def test_a_process_is_found_by_its_mark_even_in_a_session_of_its_own(tmp_path: Path) -> None:
    worker = Script("", env={"MARK_OF_THIS_TEST": "yes"}, log_path=tmp_path / "log")
    with worker:
        wait_until(lambda: procfs.carrying("MARK_OF_THIS_TEST", "yes") == [worker.main_pid])
    assert procfs.carrying("MARK_OF_THIS_TEST", "yes") == []
    assert procfs.process(os.getpid()) is not None


def test_a_supervisor_starts_the_dead_again_and_counts_them(tmp_path: Path) -> None:
    with Supervisor(lambda name: Script("", name=name, log_path=tmp_path / name), count=2) as supervisor:
        first, second = supervisor.workers
        first.kill_group()
        wait_until(lambda: supervisor.deaths)
        assert supervisor.deaths_by_worker() == {"w1": 1}
        wait_until(lambda: supervisor.workers[0] is not first and supervisor.workers[0].is_alive())
        assert supervisor.workers[1] is second
    assert supervisor.deaths_by_worker() == {"w1": 1}
    assert not any(worker.is_alive() for worker in supervisor.workers)


def test_a_supervisor_gives_up_on_a_worker_that_cannot_live(tmp_path: Path) -> None:
    def make(name: str) -> Worker:
        return DiesAtOnce("", name=name, log_path=tmp_path / name)

    with Supervisor(make, restart_delay=0.01, give_up_after=3) as supervisor:
        wait_until(lambda: supervisor.gave_up)
    assert [death.status for death in supervisor.deaths] == [3, 3, 3]
