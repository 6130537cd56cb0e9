"""pytest-celery's fixtures, with a worker image that has the plugin in it.

They are imported here, and only where an engine answers, instead of by pytest-celery's own plugin:
that one would load in every run, see `addopts` in pyproject.toml.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.smoke.engine import docker_trouble

ROOT = Path(__file__).resolve().parents[2]

if not docker_trouble():
    from pytest_celery import *  # noqa: F403
    from pytest_celery import DEFAULT_WORKER_CONTAINER_TIMEOUT, DEFAULT_WORKER_VOLUME, CeleryWorkerContainer
    from pytest_docker_tools import build, container, fxtr

    guarded_worker_image = build(
        path=str(ROOT), dockerfile="tests/smoke/Dockerfile", tag="celery-poison/smoke-worker:latest"
    )

    # Overrides pytest-celery's container of that name; only the image differs.
    default_worker_container = container(
        image="{guarded_worker_image.id}",
        environment=fxtr("default_worker_env"),
        network="{default_pytest_celery_network.name}",
        volumes={"{default_worker_volume.name}": DEFAULT_WORKER_VOLUME},
        wrapper_class=CeleryWorkerContainer,
        timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
        command=fxtr("default_worker_command"),
    )

    @pytest.fixture
    def default_worker_tasks(default_worker_tasks: set[ModuleType]) -> set[ModuleType]:
        from tests.smoke import smoke_tasks

        return default_worker_tasks | {smoke_tasks}
