"""What a worker that leaves in peace has on record still, and did not hear of."""

from __future__ import annotations

from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Start
from celery_poison.settings import Settings
from celery_poison.worker.lease import Incarnation
from celery_poison.worker.outcome import Outcomes
from tests.sites import on_site


def test_NEW_9_a_suspect_that_ended_while_its_worker_left_is_a_candidate_no_longer(redis_url: str) -> None:
    """Its message goes back, and the copy of it is not run: nobody else would clear its flag."""
    me = Incarnation("w1@h")
    with open_redis(redis_url) as client:
        ledger = Ledger(client, Keys("ns"))
        died, ended, ran = (
            Start("R", token, me.worker, 7, 1, 1, 0, name, "t", "celery", 2, 5, 1, 1)
            for token, name in (("b.1", "suspect"), ("b.2", "suspect"), ("b.3", "other"))
        )
        ledger.client.hset(ledger.keys.running, "m1", died.encode())
        ledger.messages.crash("m1", died, cause="signal:9", shared=True)
        assert ledger.read.candidate_ids() == {"suspect"}
        for mid, start in (("m1", ended), ("m2", ran)):
            ledger.client.hset(ledger.keys.running, mid, start.encode())
        ledger.client.hset(ledger.keys.done, ended.token, "D")

        outcomes = on_site(Outcomes, me=me, settings=Settings(), ledger=ledger)
        outcomes.take_back_all()

        assert ledger.read.candidate_ids() == set()
        (left,) = ledger.read.running()
        assert left[1].token == ended.token, "by it a copy is recognised"
