"""What the workers of a script are started with: ``celery -A examples.issues.app worker``."""

from __future__ import annotations

import os

from examples.issues.stage import make_app

app = make_app(os.environ)
