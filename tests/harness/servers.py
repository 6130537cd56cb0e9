"""A private RabbitMQ, and a private Redis that fails over."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import kombu
import redis

from celery_poison.testing import RedisServer
from celery_poison.testing.servers import PATIENCE, Running, Server, free_ports, wait_until

#: Debian's `rabbitmq-server` on the PATH changes to the user rabbitmq and to the system's directories;
#: the script that it calls in the end does neither.
PLAIN_SCRIPTS = Path("/usr/lib/rabbitmq/bin")


def find_script(name: str = "rabbitmq-server") -> str | None:
    """The path of one of RabbitMQ's own scripts, or None where RabbitMQ is not installed."""
    plain = PLAIN_SCRIPTS / name
    return str(plain) if os.access(plain, os.X_OK) else shutil.which(name)


class RabbitServer(Server):
    """One RabbitMQ node with a name, ports, directories, cookie, user and port mapper of its own.

    No plugins are loaded, nothing of the system's RabbitMQ is read or written, and it runs as any user,
    root too. Starting takes some seconds. After `kill()`, `start()` brings durable messages back.
    """

    title = "RabbitMQ"
    goodbye = signal.SIGKILL  # nothing in it is worth a slow one

    def __init__(self) -> None:
        super().__init__()
        script = find_script()
        if script is None:
            raise FileNotFoundError("no rabbitmq-server: install RabbitMQ")
        self._script = script
        self.port, self._dist_port, self._epmd_port = free_ports(3)
        self._node = f"poison{self.port}@localhost"
        # Random, so that only this server lets us in, should another one have taken the port.
        self._password = secrets.token_hex(8)
        self._epmd: subprocess.Popen[bytes] | None = None

    @staticmethod
    def available() -> bool:
        return find_script() is not None and shutil.which("epmd") is not None

    def url(self, vhost: str = "/") -> str:
        name = "%2F" if vhost == "/" else vhost
        return f"amqp://harness:{self._password}@127.0.0.1:{self.port}/{name}"

    def ctl(self, *arguments: str) -> str:
        """`rabbitmqctl` for this node; what it printed."""
        script = find_script("rabbitmqctl")
        assert script is not None, "rabbitmq-server without rabbitmqctl"
        done = subprocess.run(
            [script, "-q", "-n", self._node, *arguments],
            env=self._environment(),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _launch(self) -> subprocess.Popen[bytes]:
        (self.directory / "rabbitmq.conf").write_text(
            _RABBIT_CONFIG.format(port=self.port, password=self._password, logs=self.directory)
        )
        (self.directory / "plugins").write_text("[].\n")
        # The port mapper is started here: left to itself, Erlang starts one that outlives us.
        mapper = ("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
        self._epmd = self._spawn(*mapper, env=self._environment())
        return self._spawn(self._script, env=self._environment())

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        for each in (process, self._epmd):
            if each is not None:
                with suppress(ProcessLookupError):
                    os.killpg(each.pid, how)
                each.wait()
        self._epmd = None

    def _answers(self) -> bool:
        with kombu.Connection(self.url(), connect_timeout=5) as connection:
            try:
                connection.connect()
            except connection.connection_errors:
                return False
        return True

    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_"))}
        here = str(self.directory)
        return inherited | {
            "HOME": here,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": f"{here}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{here}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{here}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{here}/mnesia",
            "RABBITMQ_LOG_BASE": here,
            # With input allowed, the script becomes the server instead of staying its parent, so that
            # the process we wait for is the server itself. We allow none all the same.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -start_epmd false",
        }


class SharedRabbit(RabbitServer):
    """The one RabbitMQ of all processes of a run, found by its place: the first to ask starts it.

    None of them stops it: `end_shared` does, when the last has ended.
    """

    def __init__(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._place, note = place, place / _NOTE
        # Held while it starts, by a process that may be killed: the kernel gives it up then.
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().__init__()
            if note.exists():
                vars(self).update(json.loads(note.read_text())["is"])
            else:
                self.start()
                self._started = [self._running(), self._epmd]
                # Nobody's to stop or pause from here on, nor the starter's.
                self._process = self._epmd = None
                kept = {name: vars(self)[name] for name in _SHARED}
                note.write_text(
                    json.dumps({"is": kept, "pids": [each.pid for each in self._started if each]})
                )

    @property
    def directory(self) -> Path:
        return self._place

    def _end(self, how: signal.Signals) -> None:
        if (self._place / _NOTE).exists():
            raise RuntimeError("others use this RabbitMQ, too: a test that ends one starts one of its own")
        super()._end(how)  # it could not be started


_NOTE = "server.json"
_SHARED = ("port", "_dist_port", "_epmd_port", "_node", "_password")


def end_shared(place: Path) -> None:
    """Kill the RabbitMQ that is shared there, if one is."""
    if (note := place / _NOTE).exists():
        for pid in json.loads(note.read_text())["pids"]:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)


_RABBIT_CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
default_user = harness
default_pass = {password}
loopback_users = none
# A nearly full disk or a small machine must not stop the publishers of a test.
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.relative = 0.9
log.dir = {logs}
log.file = node.log
log.file.level = warning
"""

# --- Sentinel -------------------------------------------------------------------------------------

MASTER_NAME = "poison"


class SentinelServer(RedisServer):
    """One Sentinel: a redis-server in another mode, with a configuration that it rewrites itself."""

    def __init__(self, master: RedisServer) -> None:
        super().__init__(master.binary)
        self._monitors = _SENTINEL_CONFIG.format(name=MASTER_NAME, port=master.port)

    def _command(self) -> list[str]:
        path = self.directory / "sentinel.conf"
        if not path.exists():
            path.write_text(f'port {self.port}\nbind 127.0.0.1\ndir "{self.directory}"\n{self._monitors}')
        return [self.binary, str(path), "--sentinel"]

    def has_master(self, port: int) -> bool:
        """Does it send everybody there, in whatever way it is asked? During a failover its answers differ."""
        row = _row(self.ask("master"))
        return row["port"] == str(port) and row["flags"] == "master"

    def ask(self, what: str) -> Any:
        """As it comes: what redis-py makes of it differs between its versions."""
        with self.client(protocol=2) as client:
            client.response_callbacks.clear()
            return client.execute_command("SENTINEL", what, MASTER_NAME)


def _row(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))


class SentinelSet(Running):
    """A master and a replica under one Sentinel.

    The last writes before a failover may be lost, as with any Redis that replicates asynchronously.
    """

    def __init__(self) -> None:
        # By default a master waits five seconds for more replicas before it copies itself.
        options = {"repl-diskless-sync-delay": 0}
        self.master, self.replica = RedisServer(options=options), RedisServer(options=options)
        self.sentinel = SentinelServer(self.master)

    def url(self, db: int = 0) -> str:
        """Celery's form of a Sentinel URL."""
        return f"sentinel://127.0.0.1:{self.sentinel.port}/{db}"

    @property
    def transport_options(self) -> dict[str, Any]:
        """For `broker_transport_options` and `result_backend_transport_options`."""
        return {"master_name": MASTER_NAME}

    def client(self, db: int = 0) -> redis.Redis:
        """A new client of whoever is master now; it does not follow a failover."""
        return self.master.client(db)

    def start(self) -> Self:
        try:
            self.master.start()
            self.replica.start()
            with self.replica.client() as replica:
                replica.replicaof("127.0.0.1", str(self.master.port))
                wait_until(lambda: replica.info("replication")["master_link_status"] == "up", what="in step")
            self.sentinel.start()
            self.wait_whole()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.stop()

    def fail_over(self, *, kill: bool = True) -> None:
        """Make the replica the master, and wait until it is and the Sentinel says so.

        With `kill` the master dies by SIGKILL and stays dead until `replica.start()`. Without, the
        Sentinel is told to switch: the old master lives, and takes writes that will be lost, until
        the Sentinel makes a replica of it some seconds later (see `wait_whole`).
        """
        old, new = self.master, self.replica
        if kill:
            old.kill()
        else:
            self.sentinel.ask("failover")

        def has_taken_over() -> bool:
            try:
                with new.client() as client:
                    role = client.info("replication")["role"]
            except redis.ConnectionError:
                return False  # the Sentinel cuts off all clients of a replica that it promotes
            return bool(role == "master" and self.sentinel.has_master(new.port))

        wait_until(has_taken_over, what=lambda: f"a failover\n{self.sentinel.log_text()}")
        self.master, self.replica = new, old

    def wait_whole(self) -> None:
        """Wait until the Sentinel knows a replica in step: it can fail over."""

        def in_step() -> bool:
            known = map(_row, self.sentinel.ask("replicas"))
            return sum(row["flags"] == "slave" and row["master-link-status"] == "ok" for row in known) == 1

        wait_until(in_step, what=lambda: f"a replica\n{self.sentinel.log_text()}")


# The failover's own time limit is short, so that one that went wrong is tried again within a test.
_SENTINEL_CONFIG = """\
sentinel monitor {name} 127.0.0.1 {port} 1
sentinel down-after-milliseconds {name} 1000
sentinel failover-timeout {name} 5000
sentinel parallel-syncs {name} 1
"""
