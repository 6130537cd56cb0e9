"""One app, configured wholly by an environment, so that test and workers build the same."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_poison import extensions
from tests.apps import tasks

#: Names of the extensions that there are, with spaces between them; all, where the variable is missing.
EXTENSIONS = "POISON_TEST_EXTENSIONS"
#: A JSON object of Celery settings for every app of a run.
SETTINGS = "POISON_TEST_SETTINGS"

DEFAULTS: dict[str, Any] = {
    "accept_content": ["json", "pickle"],
    "broker_connection_retry_on_startup": True,
    # Short, so that a test sees a failover in seconds.
    "poison_heartbeat_interval": 0.3,
    "poison_activation_interval": 1.0,
}


def keep_extensions(environ: Mapping[str, str]) -> None:
    """Leave those extensions out of this process that an environment does not name."""
    if EXTENSIONS in environ:
        extensions.ORDER = tuple(environ[EXTENSIONS].split())


def of_extensions(**options: Any) -> dict[str, Any]:
    """Return options of tasks that extensions bring; none where these were left out."""
    return options if extensions.ORDER else {}


def build_app(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    """The app `fleet` with all its tasks.

    BROKER_URL, RESULT_BACKEND and, for the plugin's ledger, POISON_REDIS_URL (may be missing) say
    where; POISON_SETTINGS is a JSON object of any further Celery settings. MARKS_URL, where the tasks
    leave their marks, is read when they run. Only a worker makes its app the `current` one: a test
    process holds several. Only there extensions are left out by the environment.
    """
    if current:
        keep_extensions(environ)
    app = Celery("fleet", set_as_current=current)
    app.conf.update(DEFAULTS)
    app.conf.update(json.loads(os.environ.get(SETTINGS) or "{}"))
    app.conf.update(broker_url=environ["BROKER_URL"], result_backend=environ.get("RESULT_BACKEND"))
    if environ.get("POISON_REDIS_URL"):
        app.conf.poison_redis_url = environ["POISON_REDIS_URL"]
    app.conf.update(json.loads(environ.get("POISON_SETTINGS", "{}")))
    tasks.register(app)
    return app
