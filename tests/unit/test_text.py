"""Words for people: moments with their zone, ids that are short and unique, commands that can be typed."""

from __future__ import annotations

import sys
import time

import pytest

from celery_poison import causes
from celery_poison.basics.text import between, command, count_of, short, some_of, span, when

ID = "0b6d1a0c-4f0e-4d0a-9f5e-6c1f3a1f2b11"


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    yield None  # type: ignore[misc]
    monkeypatch.undo()
    time.tzset()


def test_a_moment_is_told_with_its_zone_and_a_death_between_two(zone: None) -> None:
    assert when(1_700_000_000) == "2023-11-14 17:13:20 EST"
    assert between(1_700_000_000, 1_700_000_034) == "between 2023-11-14 17:13:20 and 17:13:54 EST"
    assert between(1_700_000_000, 1_700_000_001) == "at 2023-11-14 17:13:21 EST"
    across = between(1_700_000_000, 1_700_086_400)
    assert across == "between 2023-11-14 17:13:20 EST and 2023-11-15 17:13:20 EST"


def test_an_id_is_as_short_as_tells_it_apart() -> None:
    assert short(ID) == "0b6d1a0c"
    assert short(ID, [ID, "0b6d1a0c-5f0e-4d0a-9f5e-6c1f3a1f2b11"]) == "0b6d1a0c-4"
    assert short("order-12") == "order-12"
    assert short("o" * 50) == "o" * 20


@pytest.mark.parametrize(
    ("typed", "app"),
    [
        (["celery", "-A", "shop", "worker"], "shop"),
        (["celery", "--app=shop.celery:app", "poison", "status"], "shop.celery:app"),
        (["celery", "-Ashop", "worker"], "shop"),
        (["python", "-m", "pytest"], "proj"),
        (["celery", "-A", "a b", "worker"], "'a b'"),
    ],
)
def test_a_command_names_the_app_that_this_process_was_given(
    monkeypatch: pytest.MonkeyPatch, typed: list[str], app: str
) -> None:
    monkeypatch.setattr(sys, "argv", typed)
    monkeypatch.delenv("APP", raising=False)
    assert command("poison show ab12") == f"celery -A {app} poison show ab12"


def test_small_words() -> None:
    assert [span(5), span(200), span(7200), span(200_000)] == ["5 s", "3 min", "2 h", "2 d"]
    assert (count_of(2, "process"), count_of(1, "process")) == ("2 processes", "1 process")
    assert some_of(map(str, range(4)), 2) == "0, 1 and 2 more"
    assert [causes.short(cause) for cause in ("signal:11", "signal 99", "oom")] == [
        "SIGSEGV",
        "signal 99",
        "oom",
    ]
