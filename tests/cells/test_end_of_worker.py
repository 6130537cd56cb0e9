"""The nursery sees the end of its worker, and says so: the others do not wait whether it comes back."""

from __future__ import annotations

import pytest

from tests import sampled
from tests.cells.conftest import Court

EVER = 10**9


@pytest.mark.parametrize("pool", sampled(["prefork", "threads"], ["solo", "gevent", "eventlet"]))
def test_EMS_2_a_worker_whose_end_its_nursery_saw_is_not_waited_for(court: Court, pool: str) -> None:
    def unwell() -> list[str]:
        reply = court.ledger.scripts.call("watch", activation_ms=EVER, patience_ms=EVER)
        return [word.decode() for word in reply[10]]

    with court.worker(pool=pool) as worker:
        court.await_that(court.quarantine.queries.leases, "it has a lease")
        (name,) = court.quarantine.queries.leases()
        assert not unwell()
        worker.kill_main()
        court.await_that(lambda: unwell() == [name, "gone"], "its death is believed at once")
        court.await_that(lambda: not court.nurseries(), "the nursery ends")


def test_EMS_2_a_worker_that_is_connected_lives_whatever_is_said_of_it(court: Court) -> None:
    with court.worker() as worker:
        court.await_that(court.quarantine.queries.leases, "it has a lease")
        (name,) = court.quarantine.queries.leases()
        court.ledger.fleet.ended(name)
        court.await_that(court.lives_on(worker, 2.0), "it goes on")
        assert [*court.quarantine.queries.leases()] == [name]
        assert not court.quarantine.queries.open_incidents()
