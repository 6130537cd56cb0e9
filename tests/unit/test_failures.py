"""What an attempt raised: how it is described, bounded, carried and decided about."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_poison import Policy, guarded
from celery_poison.causes import Evidence
from celery_poison.decide import Failing, failing
from celery_poison.errors import ConfigurationError
from celery_poison.keep.arguments import fingerprint_of_failure
from celery_poison.model import NO_HISTORY, History
from celery_poison.rules.failures import (
    ATTEMPTS,
    HEADER,
    MESSAGE,
    Failure,
    KeptFailure,
    PastAttempt,
    carried_after,
    carried_by_release,
    earlier_of,
    failure_of,
    last_trouble,
)
from celery_poison.settings import Settings
from tests.docs import verdict_table

KINDS = [("A", "B"), ("B",), ("A",), ("C",), ()]


def test_NEW_10_every_exception_is_decided_about_as_the_table_in_the_docs_says() -> None:
    sets: list[tuple[str, ...]] = [(), ("A",), ("B",), ("A", "B"), ("C",)]
    for kinds, keep, ignore, at_once in itertools.product(KINDS, (False, True), sets, sets):
        expected = verdict_table.failing_for(kinds, keep, ignore, at_once)
        found = failing(kinds, keep=keep, ignore=ignore, convict_at_once=at_once)
        assert found is expected, (kinds, keep, ignore, at_once)


def test_classes_are_compared_by_their_dotted_names_and_nothing_is_imported() -> None:
    policy = Policy(keep_failures=True, ignore=("json.decoder.JSONDecodeError", LookupError))
    assert policy.failing(json.JSONDecodeError("no", "", 0)) is Failing.NOTHING
    assert policy.failing(KeyError("derived")) is Failing.NOTHING
    assert policy.failing(ValueError("its base")) is Failing.KEEP
    assert (
        Policy(convict_at_once=("builtins.ValueError", "no.such.Module")).failing(
            json.JSONDecodeError("no", "", 0)
        )
        is Failing.AT_ONCE
    )


@pytest.mark.parametrize("name", ["ignore", "convict_at_once"])
@pytest.mark.parametrize(
    "value", [ValueError, "ValueError", (int,), ("not a name",), (3,), (KeyboardInterrupt,)]
)
def test_what_is_no_tuple_of_exceptions_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"poison_{name}=.* use a tuple of exception classes"):
        Settings.from_conf({f"poison_{name}": value})
    with pytest.raises(ConfigurationError, match=f"guarded.*{name}"):
        guarded(**{name: value})


def _raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it must raise")


def _inner(n: int) -> None:
    raise ValueError(f"no. {n}")


def _recursive(n: int) -> None:
    if not n:
        _inner(n)
    _recursive(n - 1)


def test_a_failure_leads_to_the_users_line_of_code() -> None:
    failure = failure_of(_raised(lambda: json.loads("{")))
    assert failure.exception == "json.decoder.JSONDecodeError"
    assert failure.stack[0].startswith("raw_decode ("), "innermost first"
    assert failure.evidence.source.startswith("<lambda> (") and "test_failures.py" in failure.evidence.source
    assert failure.message not in failure.evidence.encode(), "the journal never gets the message"


def test_equal_failures_have_one_fingerprint_wherever_the_line_and_however_deep_the_recursion() -> None:
    def fingerprint(error: BaseException, task: str = "t") -> str:
        failure = failure_of(error)
        return fingerprint_of_failure(b"secret", task, failure.exception, failure.calls)

    first = _raised(lambda: _recursive(3))
    assert fingerprint(first) == fingerprint(_raised(lambda: _recursive(40)))
    assert fingerprint(first) != fingerprint(_raised(lambda: _inner(3)))
    assert fingerprint(first) != fingerprint(first, "another task")
    assert len(failure_of(_raised(lambda: _recursive(500))).stack) == 20


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


def test_an_exception_that_cannot_be_shown_is_described_all_the_same() -> None:
    assert failure_of(_Mute()).message == "its message cannot be shown"
    failure_of(ValueError("\ud800" * 5000)).message.encode()
    assert len(failure_of(ValueError("x" * 5000)).message) == MESSAGE


def _failure(n: int, message: str = "") -> Failure:
    return Failure("ValueError", message or f"try {n}", ("work (shop.py:7)",))


@given(st.text(max_size=3000), st.integers(1, 40))
def test_what_a_retry_carries_is_bounded_and_the_newest_attempts_stay(message: str, times: int) -> None:
    header: Any = None
    for n in range(times):
        header = carried_after(header, _failure(n, f"{n} {message}"))
        assert len(header) <= HEADER
    attempts = earlier_of(header)
    assert len(attempts) <= ATTEMPTS and attempts[-1].message.startswith(f"{times - 1} ")


@given(
    st.one_of(
        st.none(), st.integers(), st.text(), st.recursive(st.none() | st.text(), st.lists).map(json.dumps)
    )
)
def test_no_header_that_somebody_else_made_does_harm(header: Any) -> None:
    assert len(earlier_of(header)) <= ATTEMPTS
    assert isinstance(last_trouble(NO_HISTORY, header), tuple)
    raw = header.encode("utf-8", "replace") if isinstance(header, str) else None
    KeptFailure.decode(raw)


def test_what_is_kept_is_read_as_it_was_written() -> None:
    failure = _failure(2)._replace(traceback="Traceback…")
    kept = KeptFailure.of(failure, carried_after(None, _failure(1)))
    assert KeptFailure.decode(kept.encode().encode()) == kept
    assert kept.earlier == (PastAttempt("ValueError", "try 1", "work (shop.py:7)"),)


def test_EMS_7_the_next_attempt_reads_what_came_last() -> None:
    header = carried_after(None, _failure(1))
    died = History(cause="oom", evidence=Evidence(rss_kb=7).encode(), strikes=1)
    assert last_trouble(NO_HISTORY, None) == ("", "")
    assert last_trouble(died, header)[0] == "oom", "a death since the last attempt that ended alive"
    cause, found = last_trouble(History(cause="oom", evidence=died.evidence), header)
    assert (cause, Evidence.decode(found).exception) == ("failure", "ValueError")
    assert last_trouble(History(cause="oom", probation=True), header)[0] == "oom", "released after a death"
    kept = KeptFailure("KeyError", "try 2", "", ())
    released = carried_by_release({"poison_failures": header}, "poison_failures", kept, "f (x.py:1)")
    again = History(cause="failure", probation=True)
    assert Evidence.decode(last_trouble(again, released["poison_failures"])[1]).exception == "KeyError"


def test_a_retry_outside_of_a_guarded_worker_is_celerys_own() -> None:
    app = Celery("unit", broker="memory://", backend="cache+memory://", set_as_current=False)

    @guarded(keep_failures=True, convict_at_once=(ValueError,))
    @app.task(bind=True, shared=False, max_retries=1)
    def work(self: Any) -> None:
        raise self.retry(exc=ValueError(f"try {self.request.retries}"), countdown=0)

    assert str(work.apply().result) == "try 1", "eagerly, every try is had"
