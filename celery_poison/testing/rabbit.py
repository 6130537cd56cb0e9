"""A private RabbitMQ server."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

import kombu

from .ports import free_ports
from .waiting import PATIENCE, wait_until

#: Debian's `rabbitmq-server` on the PATH changes to the user rabbitmq and to the system's directories;
#: the script that it calls in the end does neither.
PLAIN_SCRIPTS = Path("/usr/lib/rabbitmq/bin")


def find_script(name: str = "rabbitmq-server") -> str | None:
    """The path of one of RabbitMQ's own scripts, or None where RabbitMQ is not installed."""
    plain = PLAIN_SCRIPTS / name
    return str(plain) if os.access(plain, os.X_OK) else shutil.which(name)


class RabbitServer:
    """One RabbitMQ node with a name, ports, directories, cookie, user and port mapper of its own.

    ::

        if RabbitServer.available():
            with RabbitServer() as rabbit:
                app = Celery(broker=rabbit.url(rabbit.add_vhost("mine")))

    No plugins are loaded, nothing of the system's RabbitMQ is read or written, and it runs as any user,
    root too. Starting takes some seconds; share one and give each test a virtual host.
    """

    def __init__(self) -> None:
        script = find_script()
        if script is None:
            raise FileNotFoundError("no rabbitmq-server: install RabbitMQ")
        self._script = script
        self.port, self._dist_port, self._epmd_port = free_ports(3)
        self._node = f"poison{self.port}@localhost"
        # Random, so that only this server lets us in, should another one have taken the port.
        self._password = secrets.token_hex(8)
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None

    @staticmethod
    def available() -> bool:
        return find_script() is not None and shutil.which("epmd") is not None

    def url(self, vhost: str = "/") -> str:
        name = "%2F" if vhost == "/" else vhost
        return f"amqp://harness:{self._password}@127.0.0.1:{self.port}/{name}"

    def add_vhost(self, *names: str) -> str:
        """Make virtual hosts (several cost no more than one: a second); returns the first name."""
        made = ", ".join(_MAKE_VHOST.format(name=name) for name in names)
        self.ctl("eval", f"{made}.")
        return names[0]

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

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="poison-rabbit-")
        return Path(self._directory.name)

    def start(self) -> RabbitServer:
        """Start and wait until one can log in. On the same port and data after `kill()`."""
        if self._server is not None:
            raise RuntimeError("this RabbitMQ is already running")
        self._write_files()
        # The port mapper is started here: left to itself, Erlang starts one that outlives us.
        self._epmd = self._spawn("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
        self._server = self._spawn(self._script)
        try:
            wait_until(self._answers, what=lambda: f"RabbitMQ answers\n{self.log_text()}")
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """SIGKILL the node. Its directory stays, so that `start()` brings durable messages back."""
        for process in (self._server, self._epmd):
            if process is not None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._server = self._epmd = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the node and remove its directory. Nothing in it is worth a slow good-bye."""
        self.kill()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def log_text(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("*.log")))

    def _signal(self, number: signal.Signals) -> None:
        if self._server is None:
            raise RuntimeError("this RabbitMQ is not running")
        os.killpg(self._server.pid, number)

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.directory / "output.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=self._environment(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:
            raise RuntimeError(f"RabbitMQ left with {self._server.returncode}\n{self.log_text()}")
        with kombu.Connection(self.url(), connect_timeout=5) as connection:
            try:
                connection.connect()
            except connection.connection_errors:
                return False
        return True

    def _write_files(self) -> None:
        (self.directory / "rabbitmq.conf").write_text(
            _CONFIG.format(port=self.port, password=self._password, logs=self.directory)
        )
        (self.directory / "plugins").write_text("[].\n")
        cookie = self.directory / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(secrets.token_hex(10))
            cookie.chmod(0o400)

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
            "RABBITMQ_PID_FILE": f"{here}/pid",
            # With input allowed, the script becomes the server instead of staying its parent, so that
            # the process we wait for is the server itself. We allow none all the same.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -start_epmd false",
        }

    def __enter__(self) -> RabbitServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class VhostPool:
    """Fresh virtual hosts, made twenty at a time because each call of rabbitmqctl starts an Erlang."""

    def __init__(self, server: RabbitServer, batch: int = 20) -> None:
        self._server, self._batch = server, batch
        self._ready: list[str] = []
        self._made = 0

    def take(self) -> str:
        """The name of one that nobody has used yet."""
        if not self._ready:
            self._ready = [f"v{self._made + number}" for number in range(self._batch)]
            self._made += self._batch
            self._server.add_vhost(*self._ready)
        return self._ready.pop(0)


_CONFIG = """\
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

_MAKE_VHOST = (
    'rabbit_vhost:add(<<"{name}">>, <<"harness">>), '
    "rabbit_auth_backend_internal:set_permissions("
    '<<"harness">>, <<"{name}">>, <<".*">>, <<".*">>, <<".*">>, <<"harness">>)'
)
