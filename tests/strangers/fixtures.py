"""Tests of a user's, with the fixtures of celery.contrib.

Run: KIND=guarded BROKER=memory:// BACKEND=cache+memory:// pytest -p celery.contrib.pytest --noconftest
tests/strangers/fixtures.py
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from celery import shared_task

from celery_poison import guarded

_KIND: Any = guarded if os.environ["KIND"] == "guarded" else lambda task: task


@_KIND
@shared_task
def add(x: int, y: int) -> int:
    return x + y


@pytest.fixture(scope="session")
def celery_config() -> dict[str, Any]:
    return {
        "broker_url": os.environ["BROKER"],
        "result_backend": os.environ["BACKEND"],
        "broker_transport_options": {"polling_interval": 0.01},
        "poison_heartbeat_interval": 0.3,
        "poison_activation_interval": 1.0,
    }


@pytest.mark.parametrize("number", range(2))
def test_with_a_worker_of_its_own(celery_app: Any, celery_worker: Any, number: int) -> None:
    assert add.delay(number, 2).get(timeout=20) == number + 2


@pytest.mark.parametrize("number", range(2))
def test_with_a_worker_of_the_session(
    celery_session_app: Any, celery_session_worker: Any, number: int
) -> None:
    assert add.delay(number, 2).get(timeout=20) == number + 2


def test_a_task_that_is_defined_in_the_test(celery_app: Any, celery_worker: Any) -> None:
    @_KIND
    @celery_app.task
    def multiply(x: int, y: int) -> int:
        return x * y

    celery_worker.reload()
    assert multiply.delay(3, 4).get(timeout=20) == 12
