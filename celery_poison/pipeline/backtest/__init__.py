"""What another policy would have cost: history, replayed under a grid of policies (NEW-7).

Spark picks the few messages that any policy treats differently (``steps``); the replay itself asks the same
pure ``celery_poison.decide`` that workers ask. docs/pipeline-tables.md says what is assumed where history is
silent.
"""

from celery_poison.pipeline.backtest.grid import DEFAULT_GRID, Recommendation, recommend, run
from celery_poison.pipeline.backtest.replay import Outcome, Policy, Step, replay
from celery_poison.pipeline.backtest.steps import oversized, steps

__all__ = [
    "Policy",
    "Step",
    "Outcome",
    "replay",
    "DEFAULT_GRID",
    "run",
    "recommend",
    "Recommendation",
    "steps",
    "oversized",
]
