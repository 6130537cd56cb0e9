"""The app of a fleet from whose workers every extension was left out."""

from __future__ import annotations

import os

from celery_poison import extension
from tests.apps.factory import build_app
from tests.apps.harness import Fleet

#: A package that does not exist.
NOWHERE = "celery_poison.left_out"


class BareFleet(Fleet):
    """Its workers know no extension."""

    module = "tests.extensions.bare"


if "BROKER_URL" in os.environ:
    extension.EXTENSIONS = NOWHERE
    app = build_app(os.environ, current=True)
