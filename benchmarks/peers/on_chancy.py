"""Chancy, on PostgreSQL, with a pool of processes."""

from __future__ import annotations

from typing import Any

import psycopg
from chancy import Chancy, Queue, Worker, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from peer import BEST, NAMES, POISON, URL, run


@job(queue="default", max_attempts=3 if BEST else 1)
def work(*, name: str) -> None:
    run(name)


def _app() -> Any:
    return Chancy(URL, plugins=[Leadership(), Recovery()])


async def send() -> None:
    async with _app() as app:
        await app.migrate()
        await app.declare(Queue("default", concurrency=2, polling_interval=1 if BEST else 5))
        for name in NAMES:
            await app.push(work.job.with_kwargs(name=name))


async def worker() -> None:
    async with _app() as app, Worker(app) as one:
        await one.wait_for_shutdown()


def fate() -> str:
    with psycopg.connect(URL) as connection:
        rows = connection.execute("SELECT state, kwargs ->> 'name' FROM chancy_jobs").fetchall()
    failed = sum(state == "failed" and name != POISON for state, name in rows)
    (state,) = (state for state, name in rows if name == POISON)
    return f"{state}, {failed} healthy too" if failed else str(state)
