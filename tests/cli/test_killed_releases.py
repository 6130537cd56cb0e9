"""`celery poison release` of very many messages, killed again and again: each stays in one place.

In the ordinary run `desk/test_killed_releases.py` kills a release at every command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from celery_poison.headers import MID, RELEASE
from celery_poison.states import State
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.harness import ROOT, Fleet
from tests.desk.keeping import Keeper

#: The steps of a release that `dies_releasing` knows.
ON_REDIS = ("decide", "read", "publish", "released", "tell")
ON_RABBITMQ = ("decide", "read", "publish", "sent", "confirmed", "released", "tell")
#: At which command of a step it dies: one within a batch; the first, the last, one of a later batch.
FEW, MANY = (17,), (1, 100, 501)
#: How often, after that, half of the rest is released, and the process killed whatever it is doing.
HALVES = 3


class Releases:
    """Many messages in quarantine, and a command line that releases them all."""

    def __init__(self, fleet: Fleet, keeper: Keeper, entry_points: Path) -> None:
        self.fleet, self._keeper, self._ledger = fleet, keeper, keeper.ledger
        self._path = os.pathsep.join([str(entry_points), str(ROOT)])
        self._on_redis = fleet.broker_url.startswith("redis")
        self._process: subprocess.Popen[bytes] | None = None
        self.steps = ON_REDIS if self._on_redis else ON_RABBITMQ

    def fill(self, count: int) -> None:
        for number in range(count):
            self.fleet.send("healthy", number, headers={"x-order": number})
        #: Mid -> the message as it was sent.
        self.sent = {headers[MID]: (headers, rest) for headers, rest in self._waiting(count)}
        for _ in range(count):
            self._keeper.keep(self._keeper.receive(), crashes=1)

    def start(self, dies_at: str = "") -> subprocess.Popen[bytes]:
        environment = os.environ | self.fleet.environ() | {"PYTHONPATH": self._path, "DIES_AT": dies_at}
        command = "-m celery -A tests.cli.dies_releasing poison release --filter task=fleet.* --yes"
        with (self.fleet.directory / "release.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command.split()], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        return self._process

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def kept(self) -> int:
        return self.fleet.quarantine.queries.totals()["quarantined"]

    def check(self, when: str) -> int:
        """Each message is in one place, as it was sent; return how many copies count for nothing."""
        kept = {mid for mid, _ in self.fleet.quarantine.queries.index(State.NDLV)}
        copies: dict[str, list[int]] = defaultdict(list)
        for headers, rest in self._waiting(len(self.sent) - len(kept)):
            mid, number = headers[MID], headers.pop(RELEASE)
            assert (headers, rest) == self.sent[mid], f"{when}: {mid} was changed"
            copies[mid].append(number)
        for mid, number in self._numbers(kept).items():
            counting = copies[mid].count(number)
            # Of what is in quarantine, a worker that receives this copy completes the release.
            assert counting == 1 or (mid in kept and not counting), f"{when}: {mid} has {copies[mid]}"
            assert max(copies[mid], default=0) <= number, f"{when}: {mid} has a copy that voids the others"
        return sum(map(len, copies.values())) - (len(self.sent) - len(kept))

    def _numbers(self, kept: set[str]) -> dict[str, int]:
        """Return the number of the release that counts, by mid; a copy of another one is dropped."""
        keys, pipe = self._ledger.keys, self._ledger.client.pipeline(transaction=False)
        for mid, (headers, _) in self.sent.items():
            pipe.hget(keys.message(mid) if mid in kept else keys.lineage(headers["id"]), "release")
        return dict(zip(self.sent, map(int, pipe.execute()), strict=True))

    def _waiting(self, least: int) -> list[tuple[dict[str, Any], Any]]:
        """Return (headers, all the rest) of each message in the queue, where it stays."""
        if not self._on_redis:
            return self._keeper.all_on_rabbit(least)
        found = [(raw.pop("headers"), raw) for raw in self._keeper.raw_on_redis()]
        for _, raw in found:
            del raw["properties"]["delivery_tag"]
        return found


@pytest.fixture
def releases(fleet: Fleet, keeper: Keeper, entry_points: Path) -> Iterator[Releases]:
    found = Releases(fleet, keeper, entry_points)
    yield found
    found.close()


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Return its status; on RabbitMQ each of its messages is waited for."""
    return process.wait(5 * PATIENCE)


CASES = [("redis", 200, FEW), ("rabbitmq", 200, FEW), ("redis", 10_000, MANY), ("rabbitmq", 10_000, MANY)]


@pytest.mark.matrix
@pytest.mark.parametrize(("broker_url", "count", "numbers"), CASES, indirect=["broker_url"])
def test_SAP_7_a_release_of_all_that_is_killed_again_and_again_leaves_each_message_in_one_place(
    count: int, numbers: Sequence[int], releases: Releases
) -> None:
    fleet = releases.fleet
    releases.fill(count)
    for number in numbers:
        for step in releases.steps:
            at = f"{step} {number}"
            assert _ended(releases.start(at)) == -signal.SIGKILL, f"{at}\n{fleet.log_text()[-3000:]}"
            releases.check(f"killed at {at}")
    for _ in range(HALVES if count > 1000 else 0):
        half, process = releases.kept() // 2, releases.start()
        wait_until(lambda: releases.kept() <= half, PATIENCE, fleet.log_text)  # noqa: B023 - done before the next
        process.kill()
        assert _ended(process) == -signal.SIGKILL
        releases.check(f"killed with {half} left")
    assert _ended(releases.start()) == 0, fleet.log_text()[-3000:]
    assert not releases.kept()
    assert releases.check("resumed"), "it was killed between publishing and completing"
    assert Counter(entry["mid"] for entry in fleet.events("released")) == dict.fromkeys(releases.sent, 1)
    if count < 1000:
        _every_message_runs_once(fleet, count)


def _every_message_runs_once(fleet: Fleet, count: int) -> None:
    with fleet.worker() as worker:
        wait_until(lambda: len(fleet.marks.count("healthy", "end")) == count, PATIENCE, worker.log_text)
        wait_until(lambda: not fleet.quarantine.list(candidates=True), PATIENCE, worker.log_text)
    assert set(fleet.marks.count("healthy", "start").values()) == {1}
