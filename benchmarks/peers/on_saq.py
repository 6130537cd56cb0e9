"""SAQ: asyncio on Redis."""

from __future__ import annotations

from typing import Any

from peer import BEST, NAMES, POISON, URL, run
from saq import Queue

queue = Queue.from_url(URL)
#: Of each job: a worker sends no heartbeats, so one that takes longer is swept, too.
OPTIONS = {"heartbeat": 5, "retries": 3} if BEST else {}


async def work(_: dict[str, Any], *, who: str) -> None:
    run(who)


settings = {"queue": queue, "functions": [work], "concurrency": 2}


async def send() -> None:
    await queue.connect()
    for name in NAMES:
        await queue.enqueue("work", who=name, key=name, **OPTIONS)


async def fate() -> str:
    await queue.connect()
    job = await queue.job(POISON)
    return f"{job.status.value} {job.error or ''}" if job else "nowhere"
