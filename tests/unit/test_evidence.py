"""What is known about a death: kept as data, told as a sentence, left behind by the process itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_poison.causes import NO_EVIDENCE, Evidence, describe
from celery_poison.cli.next_acts import acts_on
from celery_poison.desk.evidence import sentence_of
from celery_poison.desk.reading import remembered
from celery_poison.desk.sentences import starts_of, why
from celery_poison.extensions.black_box.evidence import GrowthEvidence
from celery_poison.model import MessageRecord
from celery_poison.states import State
from celery_poison.testing import wait_until
from celery_poison.worker.crash_reports import DUMP, CrashReport, CrashReports
from celery_poison.worker.pool_processes import Kills
from tests import PATIENCE

NUMBER = st.none() | st.integers(0, 1 << 40)


STACK = st.lists(st.text(), max_size=3)


@given(number=NUMBER, status=NUMBER, oom=st.none() | st.booleans(), rss=NUMBER, stack=STACK)
def test_evidence_is_read_as_it_was_written(
    number: int | None, status: int | None, oom: bool | None, rss: int | None, stack: list[str]
) -> None:
    evidence = Evidence(signal=number, exit=status, oom=oom, rss_kb=rss, stack=tuple(stack))
    assert Evidence.decode(evidence.encode()) == evidence


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{", '{"new": 1}', "null"])
def test_what_nobody_understands_is_no_evidence(text: str) -> None:
    assert Evidence.decode(text) == NO_EVIDENCE
    assert sentence_of(NO_EVIDENCE) == ""


@pytest.mark.parametrize(
    ("evidence", "cause", "outside", "words"),
    [
        (Evidence(signal=9, oom=True), "oom", False, ""),
        (Evidence(signal=9, oom=False), "signal:9", False, "no sign"),
        (Evidence(signal=9), "signal:9", False, "not known"),
        (Evidence(signal=15, exit=15), "signal:15", True, "asked its process to end"),
        (Evidence(exit=15), "exit:15", False, ""),
        (Evidence(noticed="gone"), "unknown", False, "The reason is not known."),
        (Evidence(noticed="silent"), "unknown", False, "Its end is not known."),
        (Evidence(noticed="gone", near_limit=True), "unknown", False, "It may be a lack of memory."),
        (Evidence(noticed="frozen"), "unknown", False, "did not answer any more."),
    ],
)
def test_NEW_2_unknown_is_said_to_be_unknown(
    evidence: Evidence, cause: str, outside: bool, words: str
) -> None:
    assert (evidence.cause, evidence.is_from_outside) == (cause, outside)
    assert words in sentence_of(evidence)


def test_memory_is_told_by_its_peak_and_its_limit() -> None:
    told = sentence_of(Evidence(rss_kb=47_104, limit_kb=24_684_544))
    assert told == "Memory: peak 46 MiB (limit 24,106 MiB)."
    told = sentence_of(Evidence(rss_kb=292_864, limit_kb=262_144, limit_of="trial"))
    assert told == "Memory: peak 286 MiB (limit 256 MiB, poison_trial_memory_limit)."
    assert sentence_of(Evidence(rss_kb=1_258_291)) == "Memory: peak 1,229 MiB."


def test_NEW_14_what_ran_out_of_memory_says_so_once_why_below_the_limit_and_where() -> None:
    at = "report (/srv/shop/tasks.py:32)"
    grew = GrowthEvidence(grew_task="shop.report", grew_to_kb=390_144, grew_kb_s=58_594, grew_at=at)
    died = Evidence(signal=9, oom=True, rss_kb=401_408, limit_kb=512_000, grown_kb=300_000).having(grew)
    record = MessageRecord(
        id="a", mid="b", task="shop.report", queue="q", state="NDLV", cause="oom", crashes=1, strikes=1
    )
    assert why(replace(record, evidence=died)) == (
        "It was killed for using too much memory. Memory: shop.report grew 60 MB/s to 381 MiB (tasks.py:32)."
        " Its peak was 392 MiB (limit 500 MiB, shared with the other processes of its worker)."
    )
    assert died.source == at and replace(died, stack=("f (x.py:1)",)).source == "f (x.py:1)"
    assert replace(died, oom=None).source == "", "of another death it would explain nothing"
    pythons = replace(grew, grew_at="parent (<frozen importlib._bootstrap>:405)")
    assert Evidence(oom=True).having(pythons).source == "", "nobody repairs that"
    full = replace(died, rss_kb=500_000, additions={})
    assert sentence_of(full) == "Memory: peak 488 MiB (limit 500 MiB)." and full.source == ""


def test_NEW_14_a_death_of_which_only_the_journal_knows_is_shown_with_its_place_and_a_next_command() -> None:
    died = Evidence(signal=11, stack=("render (/srv/shop.py:7)",)).encode()
    names = ("id", "mid", "task", "queue", "worker", "incident", "deliveries", "strikes", "failures")
    entry = dict.fromkeys(names, "") | {"state": "DLVD", "cause": "signal:11", "crashes": "0"}
    record = remembered([{**entry, "event": "crashed", "evidence": died}])
    assert record.evidence.source == "render (/srv/shop.py:7)"
    ((typed, _),) = acts_on(record)
    assert typed.endswith(" poison journal tail --deaths")
    assert acts_on(replace(record, cause="")) == [], "it ended well"


def test_NEW_29_who_knows_a_task_that_its_worker_did_not_is_said() -> None:
    names = ("id", "mid", "task", "queue")
    record = MessageRecord(**dict.fromkeys(names, "a"), state="NDLV", cause="unknown_task")
    reason = f"{describe('unknown_task')}: a; known to new@vm, where mail is not consumed"
    assert "It is known to new@vm, where mail is not consumed." in why(replace(record, reason=reason))
    assert "known to" not in why(replace(record, reason=f"{describe('unknown_task')}: a"))


def test_NEW_27_what_to_type_for_a_held_message_begins_with_its_hold() -> None:
    names = ("id", "mid", "task", "queue")
    record = MessageRecord(**dict.fromkeys(names, "a"), state="NDLV", cause="held")
    typed = [line for line, _ in acts_on(record)]
    assert typed[0].endswith(" poison hold list") and not any("repro" in line for line in typed)
    typed = [line for line, _ in acts_on(replace(record, reason="hold 12: n=42, by ann"))]
    assert typed[0].endswith(" poison hold lift 12")
    assert starts_of(replace(record, deliveries=1)) == 0, "it was stopped before that"
    assert starts_of(replace(record, deliveries=1, failures=1)) == 1


def test_NEW_14_what_to_type_stops_the_task_where_all_of_it_die_and_offers_more_memory() -> None:
    names = ("id", "mid", "queue")
    record = MessageRecord(**dict.fromkeys(names, "a"), task="my {task}", state="NDLV", cause="signal:11")
    assert acts_on(record)[-1][0].endswith(" poison block --like a")
    assert acts_on(record, all_die=True)[0][0].endswith(" poison pause --task 'my {task}'")
    for cause in ("oom", "memory_error"):
        assert any("release --to QUEUE a" in typed for typed, _ in acts_on(replace(record, cause=cause)))


# --- what a process leaves behind --------------------------------------------------------------------

_DIES = """
import os, resource, signal, sys
from celery_poison.worker import crash_reports
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.signal(signal.SIGTERM, lambda *_: None)
crash_reports.begin_report(sys.argv[1])
crash_reports.note_signals()
def handles(secret):
    {how}
handles("an argument")
"""


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CrashReports:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return CrashReports()


def _report_of(reports: CrashReports, how: str, **env: str) -> CrashReport:
    process = subprocess.Popen(
        [sys.executable, "-c", _DIES.format(how=how), reports.path],
        env={**os.environ, **env},
        stderr=subprocess.PIPE,
    )
    process.communicate(timeout=PATIENCE)
    found = reports.read(process.pid)
    assert not os.listdir(reports.path)
    return found


def test_a_native_crash_leaves_its_stack_and_no_argument(reports: CrashReports) -> None:
    words = _report_of(reports, "os.abort()")
    assert words.stack[0] == "handles (<string>:9)"
    assert words.signal is None and "argument" not in str(words)


def test_a_faulthandler_of_the_user_is_left_alone(reports: CrashReports) -> None:
    assert _report_of(reports, "os.abort()", PYTHONFAULTHANDLER="1") == CrashReport()


def test_NEW_19_where_a_process_was_before_is_not_taken_for_where_it_crashed(reports: CrashReports) -> None:
    asked = "os.kill(os.getpid(), crash_reports.DUMP)"
    words = _report_of(reports, f"{asked}\n    os.abort()")
    assert words.stack[0] == "handles (<string>:10)" and not words.asked
    words = _report_of(reports, f"{asked}; os.kill(os.getpid(), 9)")
    assert words.stack[0] == "handles (<string>:9)" and words.asked


_ANSWERS = """
import sys, time
from celery_poison.worker import crash_reports
crash_reports.begin_report(sys.argv[1], notes_signals=False)
def waits(deeper):
    if deeper:
        waits(deeper - 1)
    print("ready", flush=True)
    time.sleep(3600)
waits(30)
"""


@contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill it in the end: what waits for a process that sleeps waits for ever."""
    try:
        yield
    finally:
        process.kill()


def test_NEW_19_a_signal_in_a_burst_names_the_line_of_the_task_and_not_of_the_thread_that_answers(
    reports: CrashReports,
) -> None:
    command = [sys.executable, "-c", _ANSWERS, reports.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, ending(process):
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        for _ in range(200):
            os.kill(process.pid, DUMP)
        written = Path(reports.path, str(process.pid))
        wait_until(lambda: written.read_text().count("(most recent call first)") == 200, what="all answers")
        assert " in answer\n" not in written.read_text()


def test_NEW_19_a_thread_says_where_its_process_is_and_no_signal_interrupts_that(
    reports: CrashReports,
) -> None:
    command = [sys.executable, "-c", _ANSWERS, reports.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, ending(process):
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        for _ in range(40):  # more than fits into its file

            def answered() -> bool:  # it may have been on its way to where it sleeps
                since = reports.wake(process.pid)
                assert since is not None
                answer = partial(reports.answer, process.pid, since)
                wait_until(answer, what="an answer")
                return answer()[0] == "waits (<string>:9)"

            wait_until(answered, what="the line in which it sleeps")
        assert Path(reports.path, str(process.pid)).stat().st_size < 32 * 1024
    assert reports.wake(process.pid) is None, "nothing waits for an answer of the dead"
    reports.read(process.pid)
    assert not os.listdir(reports.path)


def test_a_signal_that_asks_to_end_is_noted(reports: CrashReports) -> None:
    assert _report_of(reports, "os.kill(os.getpid(), 15); os._exit(70)").signal == signal.SIGTERM


def test_a_signal_that_a_task_has_outlived_is_not_held_for_the_next_ones(reports: CrashReports) -> None:
    outlived = "os.kill(os.getpid(), 15); assert not crash_reports.is_noting"
    how = f"{outlived}; crash_reports.note_signals(); os._exit(1)"
    assert _report_of(reports, how).signal is None


# --- the kernel's count ------------------------------------------------------------------------------


class _Group:
    count = 3

    def limit(self) -> int:
        return 1 << 30

    def allowed(self) -> int:
        return 1 << 30

    def kills(self) -> int:
        return self.count


def test_each_kill_of_the_kernel_explains_one_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_poison.worker.pool_processes.MemoryGroup", _Group)
    monkeypatch.setattr(_Group, "count", 3)
    kills = Kills()
    assert not kills.was_for_memory(1000)
    monkeypatch.setattr(_Group, "count", 4)
    kills.look()
    assert kills.was_for_memory(1000)
    assert not kills.was_for_memory(1000)
    assert kills.was_for_memory((1 << 20) - 1000), "it had used up what there is"


# --- how many it killed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"cause": "signal:9", "crashes": 2, "strikes": 2}, "Killed 2 processes."),
        ({"cause": "worker_lost", "crashes": 2, "strikes": 2}, "It was running at 2 deaths, 2 strikes."),
        ({"cause": "signal:9", "crashes": 3, "strikes": 1}, "It was running at 3 deaths, 1 strike."),
    ],
)
def test_the_story_says_killed_only_where_nothing_else_can_be_to_blame(
    counts: dict[str, Any], said: str
) -> None:
    record = replace(MessageRecord(id="i", mid="m", task="t", queue="q", state=State.NDLV), **counts)
    assert why(record).endswith(said)


def test_the_story_names_one_death_once() -> None:
    record = MessageRecord(id="i", mid="m", task="t", queue="q", state=State.NDLV, cause="exit:7", crashes=1)
    assert why(replace(record, strikes=1)) == (
        "It ended its process with exit code 7. Its place is not on record: the task, or a library, ended the"
        " process by itself, as os._exit does, which leaves no stack."
    )
