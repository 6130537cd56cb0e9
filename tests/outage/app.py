"""The app of these tests' workers: `celery -A tests.outage.app worker`."""

from __future__ import annotations

import os

from tests.outage.apps import build
from tests.outage.dying import die_where_told

die_where_told()
app = build(os.environ, current=True)
