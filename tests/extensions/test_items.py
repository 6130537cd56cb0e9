"""Of a task that dies in a loop over many rows, the row is known; never a wrong one (NEW-20)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_poison import guarded
from celery_poison.causes import Evidence
from celery_poison.desk.sentences import why
from celery_poison.extensions.items.evidence import LoopEvidence
from celery_poison.extensions.items.loops import Loop
from celery_poison.extensions.items.mark_page import AT, ITEM, LOOP, SIZE, Mark, MarkPage, Stands, find
from celery_poison.worker.child import RunningTask
from tests import PATIENCE, sampled
from tests.extensions.loops import SHAPES, Walks, told_of, verdict

COUNT, DEADLY = 40, 27


@pytest.fixture
def walks(assemble: Callable[..., Walks], broker_url: str) -> Walks:
    return assemble(Walks, broker_url, poison_max_crashes=1)


def _told(evidence: Evidence) -> tuple[str, int | None, str]:
    loop = evidence.of(LoopEvidence)
    return loop.item_is, loop.item, loop.item_key


@pytest.mark.parametrize(
    "shapes",
    sampled([("straight", "broken_off", "handed_on", "collected", "earlier")], [(tuple(SHAPES),)]),
    ids=len,
)
def test_NEW_20_the_row_is_known_or_unknown_and_never_a_wrong_one(
    walks: Walks, shapes: tuple[str, ...]
) -> None:
    # A stack alone shows the death of an older thread; all others, and both signals: benchmarks/README.md.
    how = {shape: "SIGSEGV" if shape == "earlier" or n % 2 else "SIGKILL" for n, shape in enumerate(SHAPES)}
    sent = {walks.start("walks", shape, COUNT, DEADLY, how[shape]).id: shape for shape in shapes}
    with walks.worker(concurrency=3):
        walks.await_that(lambda: len(walks.events("crashed")) >= len(sent), "all have died")
    deaths = {entry["id"]: Evidence.decode(entry["evidence"]) for entry in walks.events("crashed")}
    for id, shape in sent.items():
        judged = verdict(shape, COUNT, DEADLY, deaths[id])
        assert judged in ("right", "unknown"), (shape, how[shape], _told(deaths[id]))
        if told_of(shape, COUNT, DEADLY):
            assert judged == "right"


def test_NEW_20_a_death_is_told_with_its_row_where_it_must_not_run_again(walks: Walks) -> None:
    result = walks.start("once", "straight", 10_000, 7_312, "SIGSEGV")
    with walks.worker():
        walks.await_that(walks.quarantine.list, "it is in quarantine")
    (record,) = walks.quarantine.list()
    assert (record.id, record.not_rerun) == (result.id, True)
    assert "It died at item 7,312 (key 8312) of 10,000." in why(record)
    (entry,) = walks.events("quarantined")
    assert Evidence.decode(entry["evidence"]).of(LoopEvidence).item == 7_312


def test_NEW_20_a_trial_a_time_limit_and_a_lack_of_memory_tell_the_row(
    assemble: Callable[..., Walks], broker_url: str
) -> None:
    walks = assemble(Walks, broker_url, poison_max_crashes=2)
    killed = walks.start("walks", "straight", COUNT, DEADLY, "SIGKILL")
    hangs = walks.start("once", "straight", COUNT, DEADLY, "hangs", time_limit=1)
    raised = walks.start("once", "straight", COUNT, DEADLY, "raises")
    with walks.worker():
        walks.await_that(lambda: len(walks.quarantine.list()) == 3, "all are in quarantine")
    told = {record.id: _told(record.evidence) for record in walks.quarantine.list()}
    assert told == {
        killed.id: ("in", DEADLY, "1027"),
        hangs.id: ("in", DEADLY, "1027"),
        raised.id: ("left", DEADLY, "1027"),
    }


def test_NEW_20_poison_redact_hides_keys_by_their_name(
    assemble: Callable[..., Walks], broker_url: str
) -> None:
    walks = assemble(Walks, broker_url, poison_max_crashes=1, poison_redact=["item_*"])
    walks.start("walks", "straight", COUNT, DEADLY, "SIGKILL")
    with walks.worker():
        walks.await_that(walks.quarantine.list, "it is in quarantine")
    assert _told(walks.quarantine.list()[0].evidence) == ("in", DEADLY, "")


def test_NEW_20_a_key_is_short_and_printable_and_what_it_raises_hurts_no_task(tmp_path: Path) -> None:
    page, complaints = MarkPage(str(tmp_path)), []
    hostile = "\x1b[2J\n'\"<b>\udc80é" + "x" * 5000

    def key() -> str:
        mark = find(str(tmp_path), "token")
        assert mark is not None
        return mark.told_of(Evidence(), hides_key=False).of(LoopEvidence).item_key

    for _row in Loop(page, "token", [object()], lambda row: hostile, complaints.append):
        assert key().startswith("\\x1b[2J\\n'\"<b>?é") and key().isprintable() and len(key()) < 120
    for _row in Loop(page, "token", [object(), object()], lambda row: 1 / 0, complaints.append):
        assert key() == ""
    assert [type(each) for each in complaints] == [ZeroDivisionError]


def test_NEW_20_rows_that_cannot_be_had_are_asked_for_once_and_their_error_is_the_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    complaints: list[Any] = []

    class Query:
        asked = 0

        def __iter__(self) -> Any:
            self.asked += 1
            raise SoftTimeLimitExceeded()

    def follow(run: Any, rows: Any, key: Any) -> Any:
        return Loop(MarkPage(str(tmp_path)), "token", rows, key, complaints.append)

    plugin = SimpleNamespace(extensions=SimpleNamespace(following=(follow,)), complain=complaints.append)
    monkeypatch.setattr("celery_poison.worker.child.plugin_of", lambda app: plugin)
    rows, task = Query(), Celery("elsewhere", broker="memory://").Task()
    with pytest.raises(SoftTimeLimitExceeded):
        RunningTask.follow(object(), task, rows, None)  # type: ignore[arg-type]
    assert (rows.asked, complaints) == (1, [])


def test_NEW_20_outside_of_a_worker_it_iterates() -> None:
    app = Celery("elsewhere", broker="memory://")

    @guarded
    @app.task(bind=True, shared=False)
    def adds(self: Any, rows: list[int]) -> int:
        mine = self.poison.each(iter(rows), key=lambda row: 1 / 0)
        return next(mine) + sum(row for row in mine)

    assert adds([1, 2, 3]) == 6
    assert adds.apply(([1, 2, 3],)).get(timeout=PATIENCE) == 6


def test_NEW_20_a_mark_that_is_half_written_or_no_mark_names_no_row() -> None:
    page = bytearray(SIZE)
    assert Mark.read(page) is None
    LOOP.pack_into(page, 0, 10, b"token", b"", b"")
    ITEM.pack_into(page, AT, 8, Stands.IN, 3, b"key", 7)
    mark = Mark.read(page)
    assert mark is not None
    assert _told(mark.told_of(Evidence(), hides_key=False)) == ("torn", None, "")
    page[AT + 8] = 200
    assert Mark.read(page) is None
    assert Mark.read(b"") is None
