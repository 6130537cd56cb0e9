"""arq: asyncio on Redis."""

from __future__ import annotations

from typing import Any, ClassVar

import arq
from arq.connections import RedisSettings
from arq.jobs import Job
from peer import BEST, NAMES, POISON, URL, run


async def work(_: dict[str, Any], name: str) -> None:
    run(name)


class WorkerSettings:
    functions: ClassVar[list[Any]] = [work]
    redis_settings = RedisSettings.from_dsn(URL)
    job_timeout = 5 if BEST else 300


async def send() -> None:
    redis = await arq.create_pool(WorkerSettings.redis_settings)
    for name in NAMES:
        await redis.enqueue_job("work", name, _job_id=name)


async def fate() -> str:
    job = Job(POISON, await arq.create_pool(WorkerSettings.redis_settings))
    result = await job.result_info()
    return f"failed: {result.result!r}" if result else str((await job.status()).value)
