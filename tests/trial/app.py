"""What these tests' workers are started with: `celery -A tests.trial.app worker`."""

from __future__ import annotations

import os

from tests.trial.apps import build

app = build(os.environ, current=True)
