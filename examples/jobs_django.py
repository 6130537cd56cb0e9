"""A row that never says RUNNING for ever: jobs in a database, and tasks that may die (Django's ORM).

The same as jobs_sqlalchemy.py, in one file instead of a project:

    celery -A jobs_django worker --concurrency 2
    python jobs_django.py 1 good.csv      (adds a job and sends its message)
    python jobs_django.py 2 evil.csv      (kills its pool process each time)
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import django
from celery import Celery
from django.conf import settings

from celery_poison import guarded

REDIS = os.environ.get("JOBS_BROKER", "redis://localhost:6379/0")
DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("JOBS_DATABASE", "jobs.sqlite3")}
settings.configure(
    DATABASES={"default": {**DATABASE, "OPTIONS": {"timeout": 20}}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()

from django.db import connection, models  # noqa: E402 - only when the settings are there

app = Celery("jobs", broker=REDIS, backend=REDIS)
app.conf.broker_connection_retry_on_startup = True


class Job(models.Model):
    state = models.CharField(max_length=20, default="WAITING")
    began_at = models.FloatField(default=0.0)

    class Meta:
        app_label = "jobs"


@guarded
@app.task
def interrupted(report: dict[str, Any]) -> None:
    """A run is over without success, and another may follow; reports may come late and in any order."""
    job = Job.objects.filter(pk=report["input"]["args"][0], began_at__lt=report["at"])
    job.filter(state="RUNNING").update(state="INTERRUPTED")


@guarded
@app.task
def quarantined(report: dict[str, Any]) -> None:
    """Nothing follows until a person decides."""
    job = Job.objects.filter(pk=report["input"]["args"][0], began_at__lt=report["at"])
    job.exclude(state="DONE").update(state="QUARANTINED")


@guarded(on_rollback=interrupted.s(), on_quarantine=quarantined.s())
@app.task
def load(job_id: int, path: str) -> None:
    Job.objects.filter(pk=job_id).update(state="RUNNING", began_at=time.time())
    time.sleep(0.2)
    if "evil" in path and not os.environ.get("JOBS_REPAIRED"):
        os.kill(os.getpid(), signal.SIGKILL)
    Job.objects.filter(pk=job_id).update(state="DONE")


def add(job_id: int, path: str) -> str:
    """Add a job and send its message; return the task's id. See docs/outbox.md to have both or neither."""
    if Job._meta.db_table not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Job)
    Job.objects.create(pk=job_id)
    return str(load.delay(job_id, path).id)


def states() -> dict[int, str]:
    return dict(Job.objects.values_list("pk", "state"))


if __name__ == "__main__":
    print(add(int(sys.argv[1]), sys.argv[2]), states())
