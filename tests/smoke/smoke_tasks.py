"""Copied into the worker's container by pytest-celery, so it imports nothing of ours but the plugin."""

from __future__ import annotations

import os
import signal

from celery import shared_task

from celery_poison import guarded


@guarded
@shared_task
def healthy(n: int) -> int:
    return n


@guarded
@shared_task
def kill_child() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
