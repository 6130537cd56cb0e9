"""DBOS: workflows whose steps are kept in PostgreSQL."""

from __future__ import annotations

import threading
from typing import Any

from dbos import DBOS, DBOSClient
from peer import BEST, NAMES, POISON, URL, run

URL = URL.replace("postgresql://", "postgresql+psycopg://")
config: Any = {"name": "peers", "system_database_url": URL, "application_version": "1"}
attempts: Any = {"max_recovery_attempts": 3} if BEST else {}


@DBOS.workflow(name="work", **attempts)
def work(name: str) -> None:
    run(name)


def _launch() -> None:
    DBOS(config=config)
    DBOS.launch()
    limits: Any = {"worker_concurrency": 1, "polling_interval_sec": 0.1} if BEST else {}
    DBOS.register_queue("peers", **limits)


def send() -> None:
    _launch()  # makes the tables
    DBOS.destroy()
    client = DBOSClient(system_database_url=URL)
    for name in NAMES:
        options: Any = {"queue_name": "peers", "workflow_name": "work", "workflow_id": name}
        client.enqueue({**options, "app_version": "1"}, name)


def worker() -> None:
    _launch()
    threading.Event().wait()


def fate() -> str:
    rows = {row.workflow_id: row for row in DBOSClient(system_database_url=URL).list_workflows()}
    given_up = sum("MAX" in row.status and name != POISON for name, row in rows.items())
    poison = rows[POISON]
    status = "given up" if "MAX" in poison.status else poison.status
    return f"{status}, {given_up} healthy too" if given_up else str(status)
