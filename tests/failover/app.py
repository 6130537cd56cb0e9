"""What these tests' workers are started with: `celery -A tests.failover.app worker`."""

from __future__ import annotations

import os

from tests.failover.apps import build

app = build(os.environ, current=True)
