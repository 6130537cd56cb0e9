"""Django, configured once for this process; a test's own database is an alias that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def configured() -> None:
    """Configure Django with a database in memory; skip where it is not installed."""
    django = pytest.importorskip("django")
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
            INSTALLED_APPS=["celery_poison.contrib.django"],
            DEFAULT_AUTO_FIELD="django.db.models.AutoField",
            USE_TZ=True,
        )
        django.setup()


@contextmanager
def alias(name: str, **database: Any) -> Iterator[None]:
    """Let `name` be a database of Django; with the tables of the outbox."""
    configured()
    from django.core.management import call_command
    from django.db import connections

    known = connections.settings
    known[name] = connections.configure_settings({"default": known["default"], name: database})[name]
    try:
        call_command("migrate", database=name, verbosity=0)
        yield
    finally:
        connections[name].close()
        del connections[name]
        del known[name]
