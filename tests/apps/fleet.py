"""What a worker is started with: `celery -A tests.apps.fleet worker`."""

from __future__ import annotations

import os

from tests.apps.factory import build_app

app = build_app(os.environ, current=True)
