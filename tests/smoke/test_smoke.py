"""Somebody else's containers and configuration: what the plugin does there with one decorator."""

from __future__ import annotations

from typing import Any

import pytest

from celery_poison import Quarantine
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.smoke.engine import docker_trouble
from tests.smoke.smoke_tasks import healthy, kill_child

pytestmark = [
    pytest.mark.smoke,
    pytest.mark.timeout(900),  # the first run pulls and builds images
    pytest.mark.skipif(bool(docker_trouble()), reason=docker_trouble()),
]


def test_SAP_3_in_containers_a_poison_is_quarantined_and_the_healthy_finish(celery_setup: Any) -> None:
    queue = celery_setup.worker.worker_queue
    poison = kill_child.s().set(app=celery_setup.app).apply_async(queue=queue)
    results = [healthy.s(n).set(app=celery_setup.app).apply_async(queue=queue) for n in range(20)]

    assert [result.get(timeout=PATIENCE) for result in results] == list(range(20))
    quarantine = Quarantine(celery_setup.app)
    (kept,) = wait_until(quarantine.list, what="the poison is in quarantine")
    assert (kept.id, kept.crashes) == (poison.id, 2)
