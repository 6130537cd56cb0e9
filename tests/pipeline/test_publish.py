"""Which rules history supports (NEW-7)."""

from __future__ import annotations

import json
from typing import Any

from celery_poison.pipeline.backtest.grid import Recommendation
from celery_poison.pipeline.backtest.replay import Outcome, Policy
from celery_poison.pipeline.publish import proposals, sheet


def _row(number: int, **more: Any) -> dict[str, Any]:
    row = {
        "fingerprint": f"{number:016x}",
        "task": "t",
        "guilty_messages": 3,
        "deaths": 6,
        "alive": 0,
        "cleared": 0,
    }
    return {**row, **more}


def test_nothing_is_blocked_that_ever_ended_alive_or_kept_an_innocent_from_running() -> None:
    wrong = Outcome(Policy(), wrong_blocks={f"{4:016x}"})
    rows = [
        _row(0),
        _row(1, alive=1),
        _row(2, cleared=1),
        _row(3, guilty_messages=1),
        _row(4),
        _row(5, fingerprint="no fingerprint'"),
        _row(6, deaths=99),
    ]
    assert [rule.fingerprint for rule in proposals(rows, [wrong, Outcome(Policy())])] == [
        f"{6:016x}",
        f"{0:016x}",
    ]


def test_a_sheet_carries_only_options_that_can_be_changed_at_run_time() -> None:
    policy = Policy(max_crashes=1, trial=False, block_fingerprint_after=3)
    told = json.loads(sheet([], Recommendation(policy, Outcome(policy), ("why",))))
    assert told == {
        "rules": [],
        "policy": {"max_crashes": 1, "block_fingerprint_after": 3},
        "reasons": ["why"],
    }
