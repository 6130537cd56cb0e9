"""A message may depend on each background job: what fails is tried again, what is refused is not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.testing import wait_until
from celery_poison.worker import threads as module
from celery_poison.worker.threads import Background, Retry


class Office:
    """A background executor, and everything that it did and complained of."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.complaints: list[str] = []
        self.background = Background(lambda error: self.complaints.append(type(error).__name__))
        self.background.start()

    def job(self, *errors: Exception) -> Callable[[], None]:
        """A job that fails with each of these, then succeeds."""
        left = list(errors)

        def work() -> None:
            self.done.append("tried")
            if left:
                raise left.pop(0)
            self.done.append("done")

        return work

    def awaits(self, *wanted: str) -> None:
        wait_until(lambda: self.done == [*wanted], what=lambda: f"{wanted}, not {self.done}")

    def is_idle(self) -> None:
        """Whatever was to be done is done by now."""
        marks: list[str] = []
        self.background.do(lambda: marks.append("x"))
        wait_until(lambda: marks and not self.background._due, what="nothing is left")


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    office = Office()
    yield office
    office.background.finish(5.0)


def test_NEW_9_a_job_that_fails_for_a_reason_nobody_foresaw_is_tried_again(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    office.background.do(office.job(RuntimeError("?"), KeyError("?")))
    office.awaits("tried", "tried", "tried", "done")
    assert office.complaints == ["RuntimeError", "KeyError"]
    told = [record for record in caplog.records if record.exc_info]
    assert len(told) == 1, "the log is not flooded"


def test_NEW_9_a_job_that_is_refused_is_not_tried_again(office: Office) -> None:
    office.background.do(office.job(StaleDelivery("it has a new owner")))
    office.is_idle()
    assert office.done == ["tried"] and office.complaints == ["StaleDelivery"]


@pytest.mark.parametrize("error", [LedgerUnavailable("away"), RuntimeError("?")])
def test_NEW_9_a_job_that_may_be_given_up_is_tried_for_as_long_as_it_is_asked_for(
    office: Office, error: Exception
) -> None:
    answers = [True, False]
    office.background.do(office.job(error, error, error), lambda: answers.pop(0))
    office.is_idle()
    assert office.done == ["tried", "tried"] and not answers


def test_a_job_waits_for_a_ledger_that_is_away(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    office.background.do(office.job(LedgerUnavailable("away"), LedgerUnavailable("away")))
    office.awaits("tried", "tried", "tried", "done")
    assert not [record for record in caplog.records if record.exc_info], "that is no fault of the job"


def test_a_job_that_asks_for_it_is_done_again_and_nobody_complains(office: Office) -> None:
    office.background.do(office.job(Retry(0.0)))
    office.awaits("tried", "tried", "done")
    assert not office.complaints


def test_a_job_that_fails_keeps_no_other_waiting(office: Office) -> None:
    office.background.do(office.job(*[RuntimeError("?")] * 100))
    others: list[int] = []
    for n in range(3):
        office.background.do(lambda n=n: others.append(n))  # type: ignore[misc]
    wait_until(lambda: others == [0, 1, 2], what="the others are done")
    office.background._due.clear()


def test_items_of_one_job_that_wait_side_by_side_are_done_together_and_each_has_its_own_outcome(
    office: Office,
) -> None:
    rounds: list[list[str]] = []
    free = threading.Event()

    def job(items: list[str]) -> list[Exception | None]:
        rounds.append(items)
        return [Retry(0.0) if item == "again" and len(rounds) == 1 else None for item in items]

    office.background.do(free.wait)
    for item in ("one", "again", "three"):
        office.background.do_together(job, item, lambda: False)
    office.background.do(office.job())
    office.background.do_together(job, "after another job", lambda: False)
    free.set()
    office.is_idle()
    assert rounds[0] == ["one", "again", "three"]
    assert sorted(item for items in rounds[1:] for item in items) == ["after another job", "again"]


def test_items_of_two_jobs_that_alternate_are_done_in_one_round_of_each_and_in_their_order(
    office: Office,
) -> None:
    rounds: list[list[str]] = []
    free = threading.Event()

    def look_up(items: list[str]) -> list[Exception | None]:
        rounds.append(items)
        return [None for _ in items]

    def acquit(items: list[str]) -> list[Exception | None]:
        rounds.append(items)
        return [None for _ in items]

    office.background.do(free.wait)
    for n in range(3):
        office.background.do_together(look_up, f"look up {n}")
        office.background.do_together(acquit, f"acquit {n}")
    free.set()
    office.is_idle()
    assert rounds == [[f"look up {n}" for n in range(3)], [f"acquit {n}" for n in range(3)]]


def test_NEW_9_an_item_whose_job_fails_is_given_up_only_where_redis_is_away(office: Office) -> None:
    given_up: list[str] = []
    errors: list[Exception] = [RuntimeError("?"), RuntimeError("?"), LedgerUnavailable("away")]

    def job(items: list[str]) -> list[Exception | None]:
        return [errors.pop(0)]

    office.background.do_together(job, "item", lambda: bool(given_up.append("item")))
    office.is_idle()
    assert given_up == ["item"] and not errors


def test_a_round_is_limited_and_an_error_of_nobody_knows_whom_is_found_one_by_one(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOGETHER", 2)
    rounds: list[list[str]] = []
    free = threading.Event()

    def job(items: list[str]) -> list[Exception | None]:
        rounds.append(items)
        if "bad" in items and len(rounds) < 4:
            raise ValueError("?")
        return [None for _ in items]

    office.background.do(free.wait)
    for item in ("good", "bad", "third"):
        office.background.do_together(job, item)
    free.set()
    office.is_idle()
    assert rounds == [["good", "bad"], ["good"], ["bad"], ["third"], ["bad"]]
