"""Each way of dying, for real: its cause, what is known about it, and strikes as docs/verdict.md says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_poison.desk.evidence import sentence_of
from tests import PATIENCE, sampled
from tests.apps.confined import Confined, new_memory_group
from tests.apps.harness import ROOT
from tests.worker.conftest import Crew

#: task, arguments -> cause, what the evidence says beside the memory, and a word of the sentence.
DEATHS: dict[tuple[str, tuple[Any, ...]], tuple[str, dict[str, Any], str]] = {
    ("kill_child", ()): ("signal:9", {"signal": 9, "oom": False}, "no sign"),
    ("segfault", ()): ("signal:11", {"signal": 11}, "Its Python code was in segfault ("),
    ("abort", ()): ("signal:6", {"signal": 6}, "Its Python code was in abort ("),
    ("endless", ()): ("signal:11", {"signal": 11, "recursion": True}, "without end, at last __repr__ ("),
    ("os_exit", ()): ("exit:7", {"exit": 7}, "exit code 7"),
    ("system_exit", ()): ("system_exit", {}, "in system_exit ("),
    ("memory_error", ()): ("memory_error", {}, "in memory_error ("),
    ("eats", (1 << 30,)): ("memory_error", {}, "in eats ("),
    ("hard_limit", ()): ("time_limit", {"time_limit_s": 1}, "time limit was 1 s"),
}


def test_NEW_2_every_death_has_its_cause_and_its_evidence(
    new_crew: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one in the pool, the second in a cell; then it is in quarantine."""
    monkeypatch.setenv("POISON_NODE", "node-7")
    crew: Crew = new_crew(redis_url, poison_code_version="v7")
    sent = {crew.send(task, *args).id: (task, args) for task, args in DEATHS}
    with crew.worker():
        crew.await_that(lambda: len(crew.quarantine.list()) == len(sent), "all in quarantine")
        crew.await_that(crew.nothing_runs, "forgotten")
    assert {entry["note"] for entry in crew.events("worker_started")} == {"on node-7"}
    for record in crew.quarantine.list():
        cause, wanted, told = DEATHS[sent[record.id]]
        assert (record.cause, record.crashes, record.strikes) == (cause, 2, 2), sent[record.id]
        assert record.pid, sent[record.id]
        assert told in f"{record.story} {sentence_of(record.evidence)}", sent[record.id]
        for entry in _crashes(crew, record.id):
            evidence = json.loads(entry["evidence"])
            stack = evidence.pop("stack", [])
            assert bool(stack) == (cause not in ("signal:9", "exit:7")), sent[record.id]
            assert (entry["cause"], wanted) == (cause, _without_memory(evidence)), sent[record.id]
            assert entry["memory_kb"], (sent[record.id], entry)
            assert int(entry["memory_kb"]) == evidence["rss_kb"] > 10_000, sent[record.id]
            assert (entry["release"], len(entry["fingerprint"])) == ("v7", 16)
    _tell_the_first_minute(crew, next(id for id, (task, _) in sent.items() if task == "segfault"))
    assert not crew.log_text().count('Traceback (most recent call last):\n  File "/celery_poison')


#: How a process leaves that a task has forked -> its exit status.
LEFT = {"exits": 3, "lacks memory": 1, "raises": 1, "rolls back": 1, "aborts": -6, "returns": 0}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_NEW_2_what_a_process_does_that_a_task_has_forked_is_not_the_tasks_end(crew: Crew, pool: str) -> None:
    sent = {how: crew.send("forks", how) for how in LEFT}
    beside = {"a thread": True} | ({"a process": True} if pool == "threads" else {})  # prefork allows none
    sent |= {how: crew.send("multiprocesses", how) for how in beside}
    with crew.worker(pool=pool):
        ends = {how: result.get(timeout=PATIENCE) for how, result in sent.items()}
        assert ends == LEFT | beside
        for n in range(4):
            crew.send("healthy", n)
        crew.await_that(lambda: crew.done() == 4, "its slots are free, and nobody else takes their messages")
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.no_strikes()
    assert len(crew.events("finished")) == len(sent) + 4, "each has one end"


def _tell_the_first_minute(crew: Crew, id: str) -> None:
    """The log alone says where it died, with what, and what to type."""
    lines = [line for line in crew.log_text().splitlines() if "celery_poison" in line]
    assert any("tasks guarded" in line and "ledger redis://" in line for line in lines)
    (suspected,) = [line for line in lines if id in line and "is a candidate now (death 1)" in line]
    assert "WARNING" in suspected
    (told,) = [line for line in lines if id in line and "is in quarantine now" in line]
    assert "ERROR" in told and "of queue celery" in told and "in segfault (" in told
    assert told.endswith(f"arguments: no arguments; celery -A tests.worker.app poison show {id[:8]}")


def _crashes(crew: Crew, id: str) -> list[dict[str, str]]:
    found = [entry for entry in crew.events("crashed") if entry["id"] == id]
    assert len(found) == 2
    return found


def _without_memory(evidence: dict[str, Any]) -> dict[str, Any]:
    grown = {"grown_kb", "grew_task", "grew_to_kb", "grew_kb_s", "grew_at", "flat", "oom_likely"}
    grown |= {"grew_curve", "grew_for_s"}
    return {name: value for name, value in evidence.items() if name not in {"rss_kb", "limit_kb"} | grown}


@pytest.mark.parametrize("signum", sampled([signal.SIGTERM], [signal.SIGQUIT]))
def test_NEW_2_a_pool_process_that_is_asked_to_end_is_nobodys_crash(
    crew: Crew, signum: signal.Signals
) -> None:
    result = crew.send("waits_for_repair", 1)
    with crew.worker():
        _kill_its_process(crew, signum)
        crew.await_that(lambda: crew.starts("waits_for_repair") == 2, "put back")
        crew.marks.repair()
        assert result.get(timeout=PATIENCE) == 1
    assert crew.no_strikes(), json.dumps(crew.events("crashed")) + crew.log_text()
    (entry,) = crew.events("interrupted")
    assert (entry["cause"], entry["failures"]) == (f"signal:{signum}", "1")
    assert json.loads(entry["evidence"])["signal"] == signum


def test_NEW_2_an_outsiders_sigkill_cannot_be_told_and_counts_and_the_survivor_is_cleared(crew: Crew) -> None:
    result = crew.send("waits_for_repair", 1)
    with crew.worker():
        _kill_its_process(crew, signal.SIGKILL)
        crew.await_that(lambda: crew.starts("waits_for_repair") == 2, "on trial")
        (record,) = crew.quarantine.list(candidates=True)
        assert (record.cause, record.strikes) == ("signal:9", 1)
        assert "The sender of SIGKILL is not known" in sentence_of(record.evidence)
        crew.marks.repair()
        assert result.get(timeout=PATIENCE) == 1
        crew.await_that(lambda: not crew.quarantine.list(candidates=True), "cleared")
        crew.await_that(lambda: "ended alive and is no candidate any more" in crew.log_text(), "said")


def test_NEW_2_a_deploy_that_signals_every_process_of_the_worker_adds_no_strike(crew: Crew) -> None:
    """As systemd does (KillMode=control-group): the pool's processes end before their worker does."""
    crew.send("waits_for_repair", 1)
    with crew.worker() as first:
        os.killpg(os.getpgid(_begun(crew)), signal.SIGTERM)
        first.wait()
    crew.marks.repair()
    with crew.worker("w2"):
        crew.await_that(lambda: crew.marks.count("waits_for_repair", "end"), "done elsewhere")
    assert crew.no_strikes()
    assert {(entry["cause"], entry["failures"]) for entry in crew.events("interrupted")} == {
        ("shutdown", "0")
    }


def _begun(crew: Crew) -> int:
    crew.await_that(lambda: crew.starts("waits_for_repair") == 1, "begun")
    (mark,) = crew.marks.all("waits_for_repair", "start")
    return mark.pid


def _kill_its_process(crew: Crew, signum: int) -> None:
    os.kill(_begun(crew), signum)


# --- the kernel's own hand ---------------------------------------------------------------------------

LIMIT = 400 << 20


@pytest.fixture
def memory_group() -> Iterator[Path]:
    with new_memory_group(LIMIT) as group:
        yield group


def test_NEW_2_the_kernels_out_of_memory_killer_is_told_from_other_killers(
    crew: Crew, memory_group: Path
) -> None:
    result = crew.send("eats", 0)
    worker = Confined(
        "tests.worker.app", name="w1", env=crew.environ(), cwd=ROOT, log_path=crew.directory / "w1.log"
    )
    worker.group = memory_group
    with worker:
        crew.await_that(crew.quarantine.list, "in quarantine")
        crew.await_that(crew.nothing_runs, "forgotten")
    (record,) = crew.quarantine.list()
    assert (record.id, record.cause, record.strikes) == (result.id, "oom", 2)
    for entry in crew.events("crashed"):
        evidence = json.loads(entry["evidence"])
        assert (evidence["signal"], evidence["oom"], evidence["limit_kb"]) == (9, True, LIMIT >> 10)
        assert evidence["rss_kb"] > 100_000
