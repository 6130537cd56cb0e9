"""Whatever another user of Redis writes into the ledger's keys, Flower has an answer (NEW-5)."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN
from tests.foreign import ID, fill, restore, write, writes

FUZZ = "POISON_FUZZ_EXAMPLES"
EXAMPLES = int(os.environ.get(FUZZ, "40"))

PATHS = [
    *("/poison", "/poison?tab=failed", "/poison/incidents", "/poison/message/{mid}", "/poison/task/{id}"),
    *("/poison/body/{mid}", "/poison/edit/{mid}", "/poison/block", "/metrics", "/poison/repro/{mid}"),
    *("/api/poison/status", "/api/poison/groups", "/api/poison/messages", "/api/poison/messages?tab=failed"),
    *("/api/poison/message/{mid}", "/api/poison/body/{mid}", "/api/poison/incidents", "/api/poison/blocks"),
    *("/api/poison/actions", "/api/poison/held", "/api/poison/proposal"),
]


@pytest.mark.timeout(7200)
def test_NEW_5_no_page_and_no_answer_of_the_api_is_an_error_of_the_server_whatever_stands_in_the_ledger(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid, client = fill(fleet, keeper), keeper.ledger.client
    flower = serve(user=ANN)
    before = {key: client.dump(key) for key in client.keys("*")}

    @settings(max_examples=EXAMPLES, derandomize=FUZZ not in os.environ, suppress_health_check=[*HealthCheck])
    @given(writes(mid), st.sampled_from(PATHS))
    def answers(written: list[Any], path: str) -> None:
        try:
            write(client, mid, written)
            answer = flower.get(path.format(mid=mid, id=ID))
            # 503 has a sentence: the ledger cannot be read.
            assert answer.status != 500, f"{path}: {answer.status} {answer.text[-800:]}"
        finally:
            restore(client, before)

    answers()
    assert "Traceback" not in flower.log_text()
