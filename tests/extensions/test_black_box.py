"""When a whole container has gone, it is known whose memory grew, how fast, and where in its code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_poison.causes import MOST_NUMBERS, Evidence
from celery_poison.desk.evidence import sentence_of
from celery_poison.desk.sentences import why
from celery_poison.extensions.black_box.evidence import GrowthEvidence
from celery_poison.extensions.black_box.memory_record import Growth, MemoryRow, read
from celery_poison.extensions.black_box.sampler import PAUSE, Sampler, Track
from celery_poison.extensions.black_box.shared import credited
from celery_poison.plugin import plugin_of
from celery_poison.rules.doubts import turn
from celery_poison.testing import Worker
from tests import PATIENCE, sampled
from tests.apps.confined import Confined, killed_as_a_whole, new_memory_group
from tests.apps.harness import ROOT
from tests.extensions.boxes import Boxes, watching

LIMIT = 400 << 20


@pytest.fixture
def container() -> Iterator[Path]:
    with new_memory_group(LIMIT) as group, killed_as_a_whole(group):
        yield group


@pytest.fixture
def boxes(assemble: Callable[..., Boxes], broker_url: str) -> Boxes:
    return assemble(Boxes, broker_url)


@pytest.fixture
def monitor(boxes: Boxes) -> Iterator[None]:
    with watching(boxes):
        yield


def _confined(boxes: Boxes, container: Path, pool: str) -> Worker:
    log, options = boxes.directory / "w1.log", {"pool": pool, "concurrency": 4}
    made = Confined(boxes.module, name="w1", env=boxes.environ(), cwd=ROOT, log_path=log, **options)
    made.group = container
    return made


def _evidence(entry: dict[str, str]) -> Evidence:
    return Evidence.decode(entry["evidence"])


@pytest.mark.usefixtures("monitor")
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_NEW_19_who_grew_is_known_when_the_whole_container_went(
    boxes: Boxes, container: Path, pool: str
) -> None:
    innocents = [boxes.start("waits"), boxes.start("computes"), boxes.start("churns")]
    with _confined(boxes, container, pool):
        boxes.await_that(lambda: boxes.quarantine.queries.totals()["running"] == 3, "they run")
        culprit = boxes.start("grows", 50, 2000)
        boxes.await_that(lambda: len(boxes.events("crashed")) == 4, "its end is on record")
    (lost,) = boxes.events("worker_lost")
    of_worker = _evidence(lost)
    grew = of_worker.of(GrowthEvidence)
    assert grew.grew_task == "box.grows"
    assert of_worker.oom_likely
    assert grew.grew_at.startswith("grows (") and "boxes.py:" in grew.grew_at
    assert grew.flat == 3
    assert grew.grew_curve[-1] - grew.grew_curve[0] > 100 << 10 and grew.grew_for_s
    assert lost["cause"] == "worker_lost", "it is evidence, and no verdict"
    (record,) = [each for each in boxes.quarantine.list(candidates=True) if each.id == culprit.id]
    assert "oom, likely: box.grows grew" in why(record), "so does `show`, and Flower"
    crashed = {entry["id"]: _evidence(entry) for entry in boxes.events("crashed")}
    assert (crashed[culprit.id].grown_kb or 0) > 100 << 10
    assert [crashed[each.id].grown_kb for each in innocents] == [0, 0, 0]


@pytest.mark.usefixtures("monitor")
@pytest.mark.parametrize("pool", sampled(["gevent"], ["eventlet"]))
def test_NEW_19_of_greenlets_it_is_known_that_their_process_grew(
    boxes: Boxes, container: Path, pool: str
) -> None:
    boxes.start("waits")
    boxes.start("grows", 50, 2000)
    with _confined(boxes, container, pool):
        boxes.await_that(lambda: len(boxes.events("crashed")) == 2, "its end is on record")
    (lost,) = boxes.events("worker_lost")
    evidence = _evidence(lost)
    grew = evidence.of(GrowthEvidence)
    assert (grew.grew_task, evidence.oom_likely) == ("", True)
    assert "oom, likely: its process grew" in sentence_of(evidence)
    assert grew.grew_at == "" or grew.grew_at.startswith("grows ("), "if it ran when it was looked at"


@pytest.mark.usefixtures("monitor")
def test_NEW_19_a_line_is_known_where_the_task_lets_no_other_thread_run(boxes: Boxes) -> None:
    """A thread of its process cannot answer then; and without a limit it is told, and held against nobody."""
    with boxes.worker("w1", concurrency=2) as worker:
        boxes.start("swallows", 6000)

        def line() -> str:
            growth = _told_of(boxes)
            return growth.rows[0].at if growth and growth.rows else ""

        # Its process may have grown before, in a library's code: that is told first.
        boxes.await_that(lambda: line().startswith("swallows ("), "it is known where it is")
        worker.kill_group()
        (lost,) = _awaited(boxes, "worker_lost")
    of_worker = _evidence(lost)
    assert (of_worker.of(GrowthEvidence).grew_task, of_worker.oom_likely) == ("box.swallows", None)
    assert "Memory: box.swallows grew" in sentence_of(of_worker)


def _awaited(boxes: Boxes, kind: str) -> list[dict[str, str]]:
    boxes.await_that(lambda: boxes.events(kind), kind)
    return boxes.events(kind)


def test_NEW_19_what_grew_and_goes_on_well_leaves_nothing_behind(boxes: Boxes) -> None:
    with boxes.worker("w1", concurrency=2):
        (name,) = _leases(boxes)
        key = plugin_of(boxes.app).keys.of("growth", name)
        client = boxes.quarantine.queries._client
        result = boxes.start("holds", 100, 2)
        boxes.await_that(lambda: client.get(key), "it is told")
        assert result.get(timeout=PATIENCE) == 100 << 20
        boxes.await_that(lambda: not client.get(key), "nothing is left")


def _leases(boxes: Boxes) -> dict[str, int]:
    boxes.await_that(boxes.quarantine.queries.leases, "a worker lives")
    return boxes.quarantine.queries.leases()


def test_NEW_19_one_process_that_the_kernel_kills_tells_how_it_grew(boxes: Boxes) -> None:
    result = boxes.start("grows", 100, 300)
    with boxes.worker("w1", concurrency=2) as worker:
        boxes.await_that(lambda: getattr(_told_of(boxes), "named", None), "it is told")
        (start,) = [start for _, start, _ in boxes.quarantine.queries.running()]
        os.kill(start.pid, signal.SIGKILL)
        crashed = _awaited(boxes, "crashed")[0]
        worker.kill_group()  # it is tried again by now
    evidence = _evidence(crashed)
    assert crashed["id"] == result.id
    assert (evidence.grown_kb or 0) >= 32 << 10
    assert evidence.of(GrowthEvidence).grew_task == "box.grows"


def _told_of(boxes: Boxes) -> Growth | None:
    for name in boxes.quarantine.queries.leases():
        if found := read(plugin_of(boxes.app).open_ledger(), name):
            return found
    return None


def test_NEW_19_a_curve_keeps_its_shape_in_few_numbers_however_long_it_runs() -> None:
    for looks in (2, 24, 25, 26, 100, 5_000):
        track = Track("t", "shop.convert", 1)
        for n in range(looks):
            track.add(PAUSE * n, 1024 * n)
        points, seconds = track.curve()
        assert 2 <= len(points) <= MOST_NUMBERS and points == sorted(points)
        assert points[-1] == 1024 * (looks - 1)
        assert seconds >= PAUSE * (looks - 1) / 2
        if looks > 2:
            apart = [later - before for before, later in pairwise(points[:-1])]
            assert max(apart) == min(apart), "at equal distances but for the last"


def test_NEW_19_a_curve_ends_with_its_process_though_its_worker_notices_later() -> None:
    nobody: Any = None
    sampler = Sampler(nobody, nobody)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        track = Track("t", "shop.convert", process.pid)
        for n in range(3):
            sampler._look_at_others(PAUSE * n, [track])
        alive = track.curve()
        process.kill()
        process.wait()
        for n in range(3, 30):
            sampler._look_at_others(PAUSE * n, [track])
    assert alive[1] > 0 and track.curve() == alive


# --- whom it names -----------------------------------------------------------------------------------

MIB = 1 << 10


def _row(name: str, grown: int, lately: int | None = None) -> MemoryRow:
    return MemoryRow(
        name, name, grown + 50 * MIB, grown, grown if lately is None else lately, MIB, "f (a.py:1)"
    )


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([_row("a", 300 * MIB), _row("b", 40 * MIB)], "a"),
        ([_row("a", 300 * MIB), _row("b", 200 * MIB)], None),
        ([_row("a", 30 * MIB)], None),
        # What grew at last, unless another has far more.
        ([_row("a", 100 * MIB, 0), _row("b", 150 * MIB)], "b"),
        ([_row("a", 900 * MIB, 0), _row("b", 40 * MIB)], "a"),
        ([], None),
    ],
)
def test_NEW_19_only_a_task_is_named_that_grew_by_far_the_most(
    rows: list[MemoryRow], named: str | None
) -> None:
    found = Growth(rows=rows, busy=4).named
    assert (found and found.task) == named


def test_NEW_19_where_tasks_share_a_process_and_none_stands_out_the_process_is_named() -> None:
    process = MemoryRow("", "", 900 * MIB, 600 * MIB, 500 * MIB, 90 * MIB, "")
    growth = Growth(rows=[_row("a", 200 * MIB)], process=process, busy=3)
    evidence = growth.told_of(Evidence(noticed="gone"), "a")
    assert evidence.grown_kb == 200 * MIB and evidence.of(GrowthEvidence).grew_task == ""
    assert "Memory: its process grew 94 MB/s to 900 MiB." in sentence_of(evidence)
    assert growth.told_of(Evidence(noticed="gone"), "other").grown_kb is None


def test_NEW_19_the_sentence_is_the_one_that_people_on_call_look_for() -> None:
    culprit = MemoryRow(
        "t", "shop.convert", 1_677_722, 1_500_000, 450_000, 87_891, "convert (/app/shop.py:63)"
    )
    growth = Growth(rows=[culprit], busy=4, used=1_950_000, limit=2_000_000)
    told = growth.told_of(Evidence(noticed="gone"), "")
    expected = "oom, likely: shop.convert grew 90 MB/s to 1.6 GiB (shop.py:63); 3 others flat."
    assert sentence_of(told).endswith(expected)
    assert "reason is not known" not in sentence_of(told)
    assert Growth.decode(growth.encode().encode()) == growth
    drawn = replace(growth, curve=(100_000, 500_000, 1_677_722), seconds=18.04)
    shape = "shop.convert grew 90 MB/s to 1.6 GiB ▁▃█ in 18.0 s (shop.py:63); 3 others flat."
    read = Growth.decode(drawn.encode().encode())
    assert read is not None and sentence_of(read.told_of(Evidence(noticed="gone"), "")).endswith(shape)
    far = Growth(rows=[culprit], busy=4, used=1_950_000, limit=20_000_000)
    assert not far.told_of(Evidence(), "").oom_likely
    killed = Evidence(signal=signal.SIGKILL, oom=True, rss_kb=1_000_000)
    assert growth.told_of(killed, "t").rss_kb == culprit.kb, "its peak was read before"
    assert growth.told_of(killed, "other").rss_kb == 1_000_000


@pytest.mark.parametrize(
    "alone", [Evidence(exit=1), Evidence(signal=11), Evidence(stack=("quits (a.py:1)",))]
)
def test_NEW_19_a_neighbours_memory_is_no_evidence_of_who_ended_by_itself(alone: Evidence) -> None:
    hog = MemoryRow("t", "shop.report", 400 << 10, 360 << 10, 300 << 10, 90 << 10, "report (/app/shop.py:28)")
    growth = Growth(rows=[hog], busy=2, used=450 << 10, limit=500 << 10)
    assert growth.told_of(alone, "other") == replace(alone, grown_kb=0)
    assert growth.told_of(alone, "t").of(GrowthEvidence).grew_task == "shop.report", "its own memory is"
    for lost in (Evidence(noticed="gone"), Evidence(signal=9)):
        said = sentence_of(growth.told_of(lost, "other"))
        assert "Beside it, memory was about to be used up: shop.report grew" in said
        assert "oom, likely: shop.report grew" in sentence_of(growth.told_of(lost, "t"))


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"7", b'{"rows": 1}', b'{"rows": [[1]], "process": null}'])
def test_NEW_19_what_cannot_be_read_is_no_evidence(raw: bytes) -> None:
    assert Growth.decode(raw) is None


TAKEN = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 28)), min_size=1, max_size=6)


@given(TAKEN)
def test_NEW_19_no_thread_is_credited_with_what_another_has_taken(threads: list[tuple[int, int]]) -> None:
    """Each has taken the first number, and has touched as much more as the second says, and given it back."""
    faults = {str(n): kept + given_back for n, (kept, given_back) in enumerate(threads)}
    taken = sum(kept for kept, _ in threads)
    found = credited(taken, faults, sum(faults.values()), 4096)
    assert all(found[str(n)] <= kept for n, (kept, _) in enumerate(threads))


def test_NEW_19_the_one_that_grew_most_is_tried_first() -> None:
    grew, flat = (replace(Evidence(near_limit=True), grown_kb=kb) for kb in (500 * MIB, 0))
    unknown = Evidence(near_limit=True)
    turns = [turn(is_convicted=False, evidence=each, ran_ms=10) for each in (grew, unknown, flat)]
    assert sorted(turns) == turns
