"""PgQueuer, on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from peer import NAMES, POISON, URL, run
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries


@asynccontextmanager
async def create() -> AsyncIterator[Any]:
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @queuer.entrypoint("work")
    async def work(job: Any) -> None:
        run(job.payload.decode())

    yield queuer


async def send() -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(URL)))
    await queries.install()
    for name in NAMES:
        await queries.enqueue("work", name.encode())


async def fate() -> str:
    connection = await asyncpg.connect(URL)
    status = await connection.fetchval(
        "SELECT status::text FROM pgqueuer WHERE payload = $1", POISON.encode()
    )
    return str(status or "nowhere")
