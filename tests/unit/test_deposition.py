"""What a worker leaves with the watcher of a cell."""

from __future__ import annotations

import os

import pytest

from celery_poison.ledger.connection import open_redis
from celery_poison.testing.ports import free_ports
from celery_poison.worker.trial.deposition import Deposition


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_where_no_plain_connection_can_be_had_there_is_no_testimony_and_no_error(scheme: str) -> None:
    deposition = Deposition(open_redis(f"{scheme}://127.0.0.1:{free_ports()[0]}"))
    deposition.write(b"PING\r\n")
    deposition.hand_over()
    assert deposition.fds == ()
    deposition.close()


def test_a_shorter_testimony_replaces_a_longer_one_as_a_whole(redis_url: str) -> None:
    deposition = Deposition(open_redis(redis_url))
    deposition.write(b"a long one")
    deposition.write(b"short")
    assert os.pread(deposition.fds[0], 99, 0) == b"short"
    deposition.write(b"")
    assert os.pread(deposition.fds[0], 99, 0) == b""
    deposition.close()
