"""Very many suspects are tried in groups, which are halved until the culprit dies alone (NEW-1)."""

from __future__ import annotations

import pytest

from tests.trial.conftest import Court

MANY = 100


def in_groups(court: Court) -> list[dict[str, str]]:
    return [entry for entry in court.events("crashed") if entry["note"] == "on trial together with others"]


@pytest.mark.parametrize("pool", ["gevent", "threads"])
def test_NEW_1_one_poison_among_a_hundred_suspects_costs_a_few_cells_and_nobody_else_is_convicted(
    court: Court, pool: str
) -> None:
    suspects = [court.suspect("trial.sleeps", n, 0.2, n == MANY // 2) for n in range(MANY)]
    with court.worker(pool=pool, concurrency=MANY) as worker:
        court.await_that(lambda: court.quarantine.list() and not court.suspects(), "all judged", 90)
        assert worker.is_alive()
    (kept,) = court.quarantine.list()
    assert (kept.id, kept.cause) == (suspects[MANY // 2].id, "signal:9")
    cells = {entry["pid"] for entry in court.events("crashed") if entry["pid"] != "1"}
    assert 2 <= len(cells) <= 6, "those of 64, 32, 16 at most, and its own, with some luck fewer"
    assert len(in_groups(court)) > 16
    assert len({entry["id"] for entry in court.events("cleared")}) == MANY - 1
    (proof,) = [e for e in court.events("crashed") if e["outcome"] == "exact"]
    assert proof["id"] == kept.id
