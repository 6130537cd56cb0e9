"""A private Redis that fails over: one master, one replica, and the Sentinels that watch them."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import redis

from .servers import RedisServer
from .waiting import PATIENCE, wait_until

MASTER_NAME = "poison"


class SentinelServer(RedisServer):
    """One Sentinel: a redis-server in another mode, with a configuration that it rewrites itself."""

    def __init__(self, master: RedisServer, quorum: int, down_after_ms: int) -> None:
        super().__init__(master.binary)
        self._monitors = _CONFIG.format(
            name=MASTER_NAME, port=master.port, quorum=quorum, down_after=down_after_ms
        )

    def _command(self) -> list[str]:
        path = self.directory / "sentinel.conf"
        if not path.exists():
            path.write_text(f'port {self.port}\nbind 127.0.0.1\ndir "{self.directory}"\n{self._monitors}')
        return [self.binary, str(path), "--sentinel"]

    def has_master(self, port: int) -> bool:
        """Does it send everybody there, in whatever way it is asked? During a failover its answers differ."""
        row = _row(self._ask("master"))
        return row["port"] == str(port) and row["flags"] == "master"

    def sees(self, replicas: int, sentinels: int) -> bool:
        """Does it know so many usable replicas, and so many other Sentinels?"""
        known = map(_row, self._ask("replicas"))
        usable = [row for row in known if row["flags"] == "slave" and row["master-link-status"] == "ok"]
        return len(usable) == replicas and len(self._ask("sentinels")) == sentinels

    def demote_master(self) -> None:
        """Make it fail over although the master is well."""
        self._ask("failover")

    def _ask(self, what: str) -> Any:
        with self.client(protocol=2) as client:
            # As it comes: what redis-py makes of it differs between its versions.
            client.response_callbacks.clear()
            return client.execute_command("SENTINEL", what, MASTER_NAME)


def _row(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))


class SentinelSet:
    """A master and a replica under one Sentinel, or three.

    ::

        with SentinelSet() as redises:
            app.conf.update(broker_url=redises.url(), broker_transport_options=redises.transport_options)
            redises.fail_over()

    The last writes before a failover may be lost, as with any Redis that replicates asynchronously.
    """

    def __init__(self, sentinels: int = 1, *, down_after_ms: int = 1000) -> None:
        # By default a master waits five seconds for more replicas before it copies itself.
        options = {"repl-diskless-sync-delay": 0}
        self.master, self.replica = RedisServer(options=options), RedisServer(options=options)
        quorum = sentinels // 2 + 1
        self.sentinels = [SentinelServer(self.master, quorum, down_after_ms) for _ in range(sentinels)]

    def url(self, db: int = 0) -> str:
        """Celery's form of a Sentinel URL."""
        return ";".join(f"sentinel://127.0.0.1:{sentinel.port}/{db}" for sentinel in self.sentinels)

    @property
    def transport_options(self) -> dict[str, Any]:
        """For `broker_transport_options` and `result_backend_transport_options`."""
        return {"master_name": MASTER_NAME}

    def client(self, db: int = 0) -> redis.Redis:
        """A new client of whoever is master now; it does not follow a failover."""
        return self.master.client(db)

    def start(self) -> SentinelSet:
        try:
            self.master.start()
            self.replica.start()
            with self.replica.client() as replica:
                replica.replicaof("127.0.0.1", str(self.master.port))
                wait_until(lambda: replica.info("replication")["master_link_status"] == "up", what="in step")
            for sentinel in self.sentinels:
                sentinel.start()
            self.wait_whole()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for server in (*self.sentinels, self.replica, self.master):
            server.stop()

    def fail_over(self, *, kill: bool = True, timeout: float = PATIENCE) -> None:
        """Make the replica the master, and wait until it is and every Sentinel says so.

        With `kill` the master dies by SIGKILL and stays dead until `replica.start()`. Without, a
        Sentinel is told to switch: the old master lives, and takes writes that will be lost, until
        the Sentinels make a replica of it some seconds later (see `wait_whole`).
        """
        old, new = self.master, self.replica
        if kill:
            old.kill()
        else:
            self.sentinels[0].demote_master()
        wait_until(lambda: self._is_master(new), timeout, what=lambda: f"a failover\n{self.log_text()}")
        self.master, self.replica = new, old

    def wait_whole(self, timeout: float = PATIENCE) -> None:
        """Wait until every Sentinel knows a replica in step, and all the others: it can fail over."""
        others = len(self.sentinels) - 1
        wait_until(
            lambda: all(sentinel.sees(replicas=1, sentinels=others) for sentinel in self.sentinels),
            timeout,
            what=lambda: f"a replica and {others} others are known to all\n{self.log_text()}",
        )

    def log_text(self) -> str:
        return "\n".join(sentinel.log_text() for sentinel in self.sentinels)

    def _is_master(self, server: RedisServer) -> bool:
        if not all(sentinel.has_master(server.port) for sentinel in self.sentinels):
            return False
        with server.client() as client:
            return bool(client.info("replication")["role"] == "master")

    def __enter__(self) -> SentinelSet:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


# The failover's own time limit is short, so that one that went wrong is tried again within a test.
_CONFIG = """\
sentinel monitor {name} 127.0.0.1 {port} {quorum}
sentinel down-after-milliseconds {name} {down_after}
sentinel failover-timeout {name} 5000
sentinel parallel-syncs {name} 1
"""
