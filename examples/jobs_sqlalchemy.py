"""A row that never says RUNNING for ever: jobs in a database, and tasks that may die (SQLAlchemy).

Beside a Redis of your own, in this directory:

    celery -A jobs_sqlalchemy worker --concurrency 2
    python jobs_sqlalchemy.py 1 good.csv      (adds a job and sends its message)
    python jobs_sqlalchemy.py 2 evil.csv      (kills its pool process each time)

JOBS_BROKER and JOBS_DATABASE say where broker and database are; with JOBS_REPAIRED=1 nothing dies any more.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from celery import Celery
from sqlalchemy import Float, String, create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from celery_poison import guarded

REDIS = os.environ.get("JOBS_BROKER", "redis://localhost:6379/0")
app = Celery("jobs", broker=REDIS, backend=REDIS)
app.conf.broker_connection_retry_on_startup = True
engine = create_engine(os.environ.get("JOBS_DATABASE", "sqlite:///jobs.sqlite3"), poolclass=NullPool)


class Base(DeclarativeBase): ...


class Job(Base):
    __tablename__ = "job"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(20), default="WAITING")
    began_at: Mapped[float] = mapped_column(Float, default=0.0)


def _set(job_id: int, state: str, *only: Any, **more: Any) -> None:
    with Session(engine) as session, session.begin():
        session.execute(update(Job).where(Job.id == job_id, *only).values(state=state, **more))


@guarded
@app.task
def interrupted(report: dict[str, Any]) -> None:
    """A run is over without success, and another may follow; reports may come late and in any order."""
    _set(report["input"]["args"][0], "INTERRUPTED", Job.state == "RUNNING", Job.began_at < report["at"])


@guarded
@app.task
def quarantined(report: dict[str, Any]) -> None:
    """Nothing follows until a person decides."""
    _set(report["input"]["args"][0], "QUARANTINED", Job.state != "DONE", Job.began_at < report["at"])


@guarded(on_rollback=interrupted.s(), on_quarantine=quarantined.s())
@app.task
def load(job_id: int, path: str) -> None:
    _set(job_id, "RUNNING", began_at=time.time())
    time.sleep(0.2)
    if "evil" in path and not os.environ.get("JOBS_REPAIRED"):
        os.kill(os.getpid(), signal.SIGKILL)
    _set(job_id, "DONE")


def add(job_id: int, path: str) -> str:
    """Add a job and send its message; return the task's id. See docs/outbox.md to have both or neither."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Job(id=job_id))
    return str(load.delay(job_id, path).id)


def states() -> dict[int, str]:
    with Session(engine) as session:
        return {job.id: job.state for job in session.query(Job)}


if __name__ == "__main__":
    print(add(int(sys.argv[1]), sys.argv[2]), states())
