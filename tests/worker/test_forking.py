"""A pool process is never forked in the middle of what a thread of its worker is doing."""

from __future__ import annotations

import os
import threading

from celery_poison.basics import forking
from tests import PATIENCE


def _fork_and_wait() -> None:
    pid = os.fork()
    if pid == 0:
        # A lock inherited in a locked state would never be free here.
        with forking.no_fork():
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_waits_until_a_thread_has_finished_its_work() -> None:
    entered, leave, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with forking.no_fork():
            entered.set()
            leave.wait()

    worker = threading.Thread(target=work)
    worker.start()
    entered.wait()
    forker = threading.Thread(target=lambda: (_fork_and_wait(), done.set()))
    forker.start()
    assert not done.wait(0.1), "forked in the middle"
    leave.set()
    assert done.wait(PATIENCE)
    worker.join()
    forker.join()


def test_a_fork_does_not_wait_for_ever_and_its_child_is_free_all_the_same() -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with forking.no_fork():
            entered.set()
            leave.wait()

    worker = threading.Thread(target=work)
    worker.start()
    entered.wait()
    _fork_and_wait()
    leave.set()
    worker.join()


def test_the_parent_can_work_and_fork_again_after_a_fork() -> None:
    for _ in range(3):
        _fork_and_wait()
        with forking.no_fork():
            pass
