"""Private servers and real worker processes, for tests and for the demo.

Everything here starts its own process on a free port with a directory of its own, waits until it
answers, and stops exactly what it started::

    with RedisServer() as redis, Worker("shop.tasks", env={"BROKER_URL": redis.url()}) as worker:
        worker.wait_ready()
        ...
        worker.kill_group()          # as an out-of-memory killer would

Nothing in this room knows the plugin, and nothing in it needs pytest.
"""

from .processes import Worker
from .proxy import TcpProxy
from .rabbit import RabbitServer
from .sentinel import SentinelSet
from .servers import RedisServer, find_redis_binary
from .supervisor import Death, Supervisor
from .waiting import WaitTimeout, wait_until

__all__ = [
    "RedisServer",
    "RabbitServer",
    "find_redis_binary",
    "SentinelSet",
    "TcpProxy",
    "Worker",
    "Supervisor",
    "Death",
    "wait_until",
    "WaitTimeout",
]
