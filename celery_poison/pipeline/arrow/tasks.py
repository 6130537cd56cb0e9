"""Work that Spark's tasks do with files themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_poison.pipeline.lake import Lake


def can_do_it(lake: Lake) -> bool:
    """Whether tasks see the lake's files, and this session hands out tasks: Spark Connect does not."""
    return lake.tasks_write and hasattr(lake.session, "_jvm")


def done(session: Any, shares: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    """Return what ``work`` makes of each share, each in a task of its own."""
    if not shares:
        return []
    told: list[Any] = session.sparkContext.parallelize(shares, len(shares)).map(work).collect()
    return told
