"""What metrics say of the deploy guard."""

from __future__ import annotations

from celery_poison.metrics.family import Family

FAMILIES = (
    Family(
        "tasks_paused_for_version",
        "Tasks that the deploy guard has paused, since a version of the code kills them",
        lambda s, o: sum(bool(pause.version) for pause in o.panel("paused") or ()),
    ),
)
