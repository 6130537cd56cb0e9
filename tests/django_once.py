"""Django, configured once for this process; a test's own database is an alias that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

#: What the admin's pages want.
_OF_ADMIN = [
    f"django.contrib.{each}"
    for each in ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
]
_MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
_CONTEXT = [
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
]


def configured() -> None:
    """Configure Django with a database in memory; skip where it is not installed."""
    django = pytest.importorskip("django")
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
            INSTALLED_APPS=["celery_poison.contrib.django", *_OF_ADMIN],
            MIDDLEWARE=_MIDDLEWARE,
            TEMPLATES=[
                {
                    "BACKEND": "django.template.backends.django.DjangoTemplates",
                    "APP_DIRS": True,
                    "OPTIONS": {"context_processors": _CONTEXT},
                }
            ],
            SECRET_KEY="of tests",
            STATIC_URL="/static/",
            ALLOWED_HOSTS=["*"],
            PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
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
