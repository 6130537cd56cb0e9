"""Whoever waits for events of a broker hears that the wait is over (EMS-8)."""

from __future__ import annotations

from typing import Any

import pytest

from celery_poison.broker.transport import guarded_connection


def test_EMS_8_a_wait_ends_that_was_broken_off_while_its_connection_was_made_anew() -> None:
    """With greenlets the order comes while the loop connects: the new connection has no consumer."""
    connection = guarded_connection(lambda: "b")("memory://")
    establish: Any = connection._establish_connection

    def meanwhile() -> Any:
        made = establish()
        connection.break_off(ConnectionResetError("taken for dead"))
        return made

    connection._establish_connection = meanwhile  # type: ignore[method-assign]
    with pytest.raises(ConnectionResetError, match="taken for dead"):
        connection.drain_events(timeout=0.01)
