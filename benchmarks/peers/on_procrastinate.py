"""Procrastinate, on PostgreSQL."""

from __future__ import annotations

from typing import Any

import procrastinate
import psycopg
from peer import BEST, NAMES, POISON, URL, run

app: Any = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))
work = app.task(run, name="work", retry=3)

if BEST:  # its manual's way to retry what a dead worker held

    @app.periodic(cron="* * * * * */10")  # each ten seconds
    @app.task(queueing_lock="stalled", pass_context=True, name="stalled")
    async def stalled(context: Any, timestamp: int) -> None:
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=10):
            await app.job_manager.retry_job(job)


def send() -> None:
    connector = procrastinate.SyncPsycopgConnector(conninfo=URL)
    with app.replace_connector(connector) as opened, opened.open():
        opened.schema_manager.apply_schema()
        for name in NAMES:
            opened.configure_task("work").defer(name=name)


def fate() -> str:
    with psycopg.connect(URL) as connection:
        asked = "SELECT status, attempts FROM procrastinate_jobs WHERE args ->> 'name' = %s"
        row = connection.execute(asked, [POISON]).fetchone()
    return f"{row[0]}, attempts {row[1]}" if row else "gone"
