"""A worker that was taken for dead lives on under another name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery_poison.errors import StaleDelivery
from celery_poison.settings import Settings
from celery_poison.worker.lease import Incarnation
from celery_poison.worker.rejoin import Rejoin
from tests.sites import on_site


class Surroundings:
    """What a rejoin touches: it writes down what is asked of it."""

    def __init__(self, *, observes: bool = False) -> None:
        self.said: list[str] = []
        self.me = Incarnation("w1@host")
        requests = [self._request("mine"), self._request("another's")]
        fakes: dict[str, Any] = {
            "lease": SimpleNamespace(rejoined=lambda: self.said.append("lease is doubtful")),
            "ledger": SimpleNamespace(messages=SimpleNamespace(reclaim=self._reclaim)),
            "inflight": SimpleNamespace(in_pool=lambda: requests),
            "loop": SimpleNamespace(call_in_loop=lambda call: call(), start_afresh=self.said.append),
            "complain": self.said.append,
            "background": None,
            "resync": None,
        }
        self.rejoin = on_site(Rejoin, me=self.me, **fakes, settings=Settings(observe_only=observes))

    def _request(self, mid: str) -> Any:
        return SimpleNamespace(
            mid=mid, start=lambda: None, end_stale=lambda: self.said.append(f"{mid} ended")
        )

    def _reclaim(self, mid: str, start: None) -> None:
        if mid != "mine":
            raise StaleDelivery(mid)


def test_EMS_8_a_worker_taken_for_dead_gets_a_new_name_and_ends_what_runs_elsewhere_by_now() -> None:
    around = Surroundings()
    before, token = around.me.worker, around.me.next_token()
    around.rejoin.taken_for_dead()
    assert around.rejoin.is_fenced
    assert around.me.worker != before == around.me.first_worker
    assert around.me.next_token().partition(".")[0] != token.partition(".")[0]
    around.rejoin.go_through()
    around.rejoin.go_through()
    assert around.said == ["lease is doubtful", "another's ended", "it was taken for dead"]


def test_a_worker_that_only_looks_on_goes_on_to_start_tasks_after_it_was_taken_for_dead() -> None:
    """It keeps its broker connection: nothing would ever open a fence, and what it drops comes nowhere."""
    around = Surroundings(observes=True)
    around.rejoin.taken_for_dead()
    around.rejoin.go_through()
    assert not around.rejoin.is_fenced
    assert around.said == ["lease is doubtful"]
