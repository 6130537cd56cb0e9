"""Calls from Python that are nearly right: what is meant is done, or the error says what to write."""

from __future__ import annotations

import pytest

from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper


@pytest.mark.parametrize("verb", ["release", "fail", "discard", "restore", "purge", "unschedule"])
@pytest.mark.parametrize("ids", ["abc", b"abc"])
def test_one_text_is_not_taken_for_the_ids_of_its_characters(verb: str, ids: object, fleet: Fleet) -> None:
    with pytest.raises(TypeError, match="list of ids"):
        getattr(fleet.quarantine, verb)(ids)


def test_nor_by_schedule_and_export(fleet: Fleet) -> None:
    with pytest.raises(TypeError, match="list of ids"):
        fleet.quarantine.schedule("abc", after=5)
    with pytest.raises(TypeError, match="list of ids"):
        [*fleet.quarantine.export("abc")]


def test_a_filter_may_be_written_as_text(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    keeper.send_and_keep("fleet.slow", 0)
    assert [record.mid for record in fleet.quarantine.list(where="task=fleet.healthy")] == [mid]
    assert [group.task for group in fleet.quarantine.groups(where="task=fleet.h*")] == ["fleet.healthy"]


@pytest.mark.parametrize("state", ["QUAR", "DLVD"])
def test_a_state_that_nothing_is_listed_in_is_refused_with_those_that_there_are(
    state: str, fleet: Fleet
) -> None:
    with pytest.raises(ValueError, match=r"NDLV \(in quarantine\), FAIL \(given up\), DLNG"):
        fleet.quarantine.list(state=state)
