"""streaQ: asyncio on a stream of Redis."""

from __future__ import annotations

from typing import Any

from peer import BEST, NAMES, POISON, URL, run
from streaq import Worker

options: dict[str, Any] = {"idle_timeout": 5, "concurrency": 1, "prefetch": 1} if BEST else {}
worker: Any = Worker(redis_url=URL, **options)


@worker.task(name="work")
async def work(name: str) -> None:
    run(name)


async def send() -> None:
    async with worker:
        for name in NAMES:
            task = work.enqueue(name)
            task.id = name
            await task


async def fate() -> str:
    async with worker:
        status = await worker.status_by_id(POISON)
        if str(status.value) != "done":
            return str(status.value)
        return "failed" if (await worker.result_by_id(POISON)).exception else "done"
