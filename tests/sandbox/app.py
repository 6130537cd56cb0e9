"""What these tests' workers are started with: `celery -A tests.sandbox.app worker`."""

from __future__ import annotations

import os

from celery_poison.sandbox import trial
from tests.sandbox.apps import build

trial.SETTING_UP = float(os.environ.get("SETTING_UP", trial.SETTING_UP))

app = build(os.environ, current=True)
