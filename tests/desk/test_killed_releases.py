"""A process that releases is killed at every one of its steps: no message is lost, none runs twice."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest

from celery_poison import Quarantine
from celery_poison.ledger import decisions as transitions
from celery_poison.quarantine import Care
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.factory import build_app
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.fleet.forked import DIED, Forked

#: A canary is waited for, too: nobody runs it, so that the second message stays.
CASES = [("", Care()), ("bigmem", Care()), ("", Care(canary=True, soak=0.01))]


def test_NEW_6_a_release_that_is_killed_at_any_command_loses_nothing_and_nothing_runs_twice(
    fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = count()
    for to, care in CASES:
        # Commands of one batch that are sent together: once, each of them.
        inside = not to and not care.canary
        for number in count(1):
            mids = [keeper.send_and_keep("fleet.healthy", next(sent), 0.0) for _ in range(2)]

            def release(mids: list[str] = mids, to: str = to, care: Care = care) -> None:
                Quarantine(build_app(fleet.environ())).release(mids, to=to, force=True, care=care)

            operator = Forked(release, number, inside=inside)
            operator.wait()
            raws = (*keeper.raw_on_redis(), *keeper.raw_on_redis("bigmem"))
            waiting = Counter(raw["headers"]["poison_mid"] for raw in raws)
            kept = {record.mid for record in fleet.quarantine.list()}
            assert all(waiting[mid] == 1 or mid in kept for mid in mids), f"{to} {care}: lost at {number}"
            assert all(waiting[mid] <= 1 for mid in mids), f"{to} {care}: doubled at {number}"
            with monkeypatch.context() as patch:
                # Somebody types the same command again, once the decision of the dead one is abandoned.
                patch.setattr(transitions, "DECISION_PATIENCE_MS", 0)
                fleet.quarantine.release(mids, to=to, force=True)
            # Out of the way of those that are sent next.
            while keeper.ledger.client.lmove("celery", "later", "RIGHT", "LEFT"):
                pass
            if operator.status != DIED:
                break
        assert number > (15 if inside else 5), "it was killed at every command"
    expected = set(range(next(sent)))
    with fleet.worker(queues=("later", "bigmem")) as worker:
        wait_until(lambda: set(fleet.marks.count("healthy", "end")) == expected, PATIENCE, worker.log_text)
        wait_until(lambda: not any(map(keeper.raw_on_redis, ("later", "bigmem"))), PATIENCE, worker.log_text)
        wait_until(lambda: not fleet.quarantine.list(candidates=True), PATIENCE, worker.log_text)
    assert not fleet.quarantine.list()
    assert set(fleet.marks.count("healthy", "start").values()) == {1}
