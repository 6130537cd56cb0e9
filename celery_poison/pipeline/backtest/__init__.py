"""What another policy would have cost: history, replayed under a grid of policies (NEW-7).

Spark picks the few messages that any policy treats differently (``past``); the replay itself asks the same
pure ``celery_poison.decide`` that workers ask. docs/pipeline-tables.md says what is assumed where history is
silent.
"""

from celery_poison.pipeline.backtest.grid import DEFAULT_GRID, Recommendation, recommend, run
from celery_poison.pipeline.backtest.in_force import InForce, Timeline
from celery_poison.pipeline.backtest.replay import Outcome, Policy, Step, replay
from celery_poison.pipeline.backtest.steps import Past, past

__all__ = [
    "InForce",
    "Timeline",
    "Policy",
    "Step",
    "Outcome",
    "replay",
    "DEFAULT_GRID",
    "run",
    "recommend",
    "Recommendation",
    "past",
    "Past",
]
