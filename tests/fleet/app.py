"""What these tests' workers are started with: `celery -A tests.fleet.app worker`."""

from __future__ import annotations

import os

from tests.fleet.apps import build

app = build(os.environ, current=True)
