"""SIGKILL of a main process, and of one of its children (SAP-2)."""

from __future__ import annotations

import os
import signal

from celery_poison.basics import procfs
from tests.fleet.crew import Watched, frozen


def test_SAP_2_a_killed_main_process_takes_its_children_along(crew: Watched) -> None:
    results = crew.hold(4)
    with crew.worker() as first:
        held = crew.await_held(first, 2)
        children = set(first.session_pids()) - {first.main_pid}
        assert children
        first.kill_main()
        crew.await_that(lambda: not any(map(procfs.process, children)), "its children are dead too")
        with crew.worker("w2"):
            crew.await_events("failover_finished")
            crew.let_go()
            crew.await_invariants(results, flagged=held)
    # Its heart may have been silent for long enough, too, by the time that the second worker listens.
    assert [entry["note"] in {"gone", "silent"} for entry in crew.events("worker_lost")] == [True]
    (incident,) = crew.quarantine.queries.incidents()
    assert incident.evidence.asked_ms is None


def test_SAP_2_a_child_killed_while_its_main_process_is_stopped_for_a_moment_alone_is_to_blame(
    crew: Watched,
) -> None:
    results = crew.hold(2)
    with crew.worker() as only:
        crew.await_held(only, 2)
        victim = crew.marks.all("holds", "start")[0]
        with frozen(only.main_pid):
            os.kill(victim.pid, signal.SIGKILL)
        (crashed,) = crew.await_events("crashed")
        assert (crashed["id"], crashed["cause"]) == (victim.id, "signal:9")
        crew.let_go()
        crew.await_invariants(results, flagged={victim.id})
    assert not crew.events("worker_lost")
    assert crew.marks.count("holds", "start") == {victim.n: 2, 1 - victim.n: 1}


def test_SAP_2_a_child_killed_while_its_main_process_is_taken_for_dead_blames_nobody_else(
    crew: Watched,
) -> None:
    """Nobody saw how it died. Its sibling lives on by its own lease, and is neither run again nor blamed."""
    results = crew.hold(4)
    with crew.worker() as old:
        held = crew.await_held(old, 2)
        victim = crew.marks.all("holds", "start")[0]
        (sibling,) = held - {victim.id}
        with crew.worker("w2", pool="threads", concurrency=4) as new:
            new.wait_ready()
            with frozen(old.main_pid):
                os.kill(victim.pid, signal.SIGKILL)
                crew.await_events("worker_lost")
                crew.let_go(new.main_pid)
                crew.await_that(lambda: _done(crew, victim.id), "the victim's message was done elsewhere")
            assert [entry["id"] for entry in crew.await_events("stale")] == [victim.id]
            crew.let_go()
            crew.await_invariants(results)
        assert old.is_alive()
    starts = {id: sum(m.id == id for m in crew.marks.all("holds", "start")) for id in (victim.id, sibling)}
    assert starts == {victim.id: 2, sibling: 1}


def _done(crew: Watched, id: str) -> bool:
    return any(entry["id"] == id for entry in crew.events("finished"))
