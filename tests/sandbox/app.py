"""What these tests' workers are started with: `celery -A tests.sandbox.app worker`."""

from __future__ import annotations

import os

from tests.sandbox.apps import build

app = build(os.environ, current=True)
