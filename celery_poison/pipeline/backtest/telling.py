"""Outcomes and recommendations as JSON has them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery_poison.pipeline.backtest.grid import Recommendation, say
from celery_poison.pipeline.backtest.replay import Outcome


def as_dict(told: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON has it."""
    as_it_is = asdict(told)
    del as_it_is["caught"]  # by fingerprint, for each of many policies: long, and told with each proposal
    return {**as_it_is, "wrong_blocks": sorted(told.wrong_blocks), "says": say(told.policy)}


def as_recommended(told: Recommendation) -> dict[str, Any]:
    """Return a recommendation as JSON has it, without the figures of its outcome."""
    return {"policy": asdict(told.policy), "says": say(told.policy), "reasons": [*told.reasons]}
