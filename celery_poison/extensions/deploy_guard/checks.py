"""What ``doctor`` checks: whether a guard that is wanted is on."""

from __future__ import annotations

from collections.abc import Iterator

from celery_poison.basics.parts import Finding
from celery_poison.extensions.deploy_guard import why_off
from celery_poison.extensions.deploy_guard.settings import DeployGuardSettings
from celery_poison.plugin import Plugin


def examine(plugin: Plugin) -> Iterator[Finding]:
    settings = plugin.settings
    if settings.of(DeployGuardSettings).deploy_guard:
        why, _, cure = why_off(settings).partition(": ")
        said = f"off: {why}" if why else f"first runs of version {settings.code_version} go alone"
        yield Finding("deploy_guard", said, cure)
