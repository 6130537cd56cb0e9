"""RQ: a process for each job."""

from __future__ import annotations

from peer import NAMES, POISON, URL, run
from redis import Redis
from rq import Queue

queue = Queue(connection=Redis.from_url(URL))


def send() -> None:
    for name in NAMES:
        queue.enqueue(run, name, job_id=name)


def fate() -> str:
    job = queue.fetch_job(POISON)
    return str(job.get_status().value)
