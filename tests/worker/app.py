"""What these tests' workers are started with: `celery -A tests.worker.app worker`."""

from __future__ import annotations

import os

from tests.worker.apps import build

app = build(os.environ, current=True)
