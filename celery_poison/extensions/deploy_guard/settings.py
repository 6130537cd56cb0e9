"""Settings of the deploy guard."""

from __future__ import annotations

from dataclasses import dataclass

from celery_poison.settings import Section, flag, seconds, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployGuardSettings(Section):
    """Of the deploy guard."""

    deploy_guard: bool = flag(
        "Try the first runs of each task under a new poison_code_version in cells; two deaths pause it."
    )
    deploy_guard_runs: int = whole(
        3, 1, "Runs in a row that must end alive before a task runs as ever.", "runs"
    )
    deploy_guard_wait: float = seconds(30.0, 1, "How long other messages of the task wait for these at most.")


SETTINGS = DeployGuardSettings
