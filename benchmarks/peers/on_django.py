"""Django's tasks, by django-tasks-db, on SQLite."""

from __future__ import annotations

import django
from django.conf import settings
from django.core.management import call_command
from peer import NAMES, POISON, run

settings.configure(
    SECRET_KEY="peers",
    INSTALLED_APPS=["django_tasks", "django_tasks_db"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "peers.db"}},
    TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
    USE_TZ=True,
)
django.setup()

from django_tasks import task  # noqa: E402
from django_tasks_db.models import DBTaskResult  # noqa: E402


@task
def work(name: str) -> None:
    run(name)


def send() -> None:
    call_command("migrate", verbosity=0)
    for name in NAMES:
        work.enqueue(name)


def worker() -> None:
    call_command("db_worker")


def fate() -> str:
    rows = [row for row in DBTaskResult.objects.all() if POISON in row.args_kwargs["args"]]
    return str(rows[0].status)
