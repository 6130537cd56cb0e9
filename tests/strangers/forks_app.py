"""What a worker is started with: `celery -A tests.strangers.forks_app worker`."""

from __future__ import annotations

import os

from tests.strangers.forks import build

app = build(os.environ, current=True)
