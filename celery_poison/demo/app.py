"""The app that the demo's workers run: ``celery -A celery_poison.demo.app worker``.

Where its Redis is, and whether the plugin guards it, is told by the environment: see ``poisons``.
"""

from __future__ import annotations

import os

from celery_poison.demo.poisons import app_from

app = app_from(os.environ)
