"""Private servers and real worker processes, for tests of one's own guarded tasks.

Everything here starts its own process on a free port with a directory of its own, waits until it
answers, and stops exactly what it started::

    with RedisServer() as redis, Worker("shop.tasks", env={"BROKER_URL": redis.url()}) as worker:
        worker.wait_ready()
        ...
        worker.kill_group()          # as an out-of-memory killer would

``celery_poison.testing.deaths`` has the ways in which a task can kill them. Nothing in this room knows the
plugin, and nothing in it needs pytest.
"""

from .processes import Death, Supervisor, Worker
from .servers import RedisServer, WaitTimeout, find_redis_binary, wait_until

__all__ = [
    "RedisServer",
    "find_redis_binary",
    "Worker",
    "Supervisor",
    "Death",
    "wait_until",
    "WaitTimeout",
]
