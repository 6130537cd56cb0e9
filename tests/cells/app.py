"""What these tests' workers are started with: `celery -A tests.cells.app worker`."""

from __future__ import annotations

import os

from celery_poison.cells import pool, trial
from tests.cells.apps import build

trial.SETTING_UP = float(os.environ.get("SETTING_UP", trial.SETTING_UP))
trial.READY = float(os.environ.get("READY", trial.READY))
pool.LIVED = float(os.environ.get("LIVED", pool.LIVED))

app = build(os.environ, current=True)
