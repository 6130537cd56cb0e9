"""What these tests' workers are started with: `celery -A tests.strangers.shapes_app worker`."""

from __future__ import annotations

import os

from tests.strangers.shapes import build

app = build(os.environ, current=True)
