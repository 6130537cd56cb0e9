"""What is around a worker and can be spoilt: its network, its clock, and the disk that it writes to."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from celery_poison.testing.servers import Running, free_ports

HOST = "127.0.0.1"


class TcpProxy(Running):
    """Forwards a port of its own to a server, until it is told not to.

    ::

        with RedisServer() as redis, TcpProxy("127.0.0.1", redis.port) as proxy:
            with Worker("shop.tasks", env={"BROKER_URL": proxy.url(redis.url())}) as worker:
                proxy.freeze()           # a partition: no error, no answer
                proxy.heal()

    Bytes that were under way when it is cut or frozen may still arrive. Linux only: elsewhere a port
    that has stopped listening cannot be kept.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = target_host, target_port
        self.port = free_ports()[0]
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._changed = threading.Condition()
        self._listening, self._flowing, self._stopped = False, True, False
        self._links: list[_Link] = []
        self.delay = 0.0
        self._thread = threading.Thread(target=self._accept, name="tcp-proxy", daemon=True)

    def url(self, direct: str) -> str:
        """The URL that leads through here to where `direct` leads; user, path and options stay."""
        parts = urlsplit(direct)
        user, at, _ = parts.netloc.rpartition("@")
        return direct.replace(parts.netloc, f"{user}{at}{HOST}:{self.port}", 1)

    # -- what can happen to a network

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        with self._changed:
            if self._listening:
                self._listening = False
                # It keeps its port: nobody else gets it before `heal`.
                self._listener.shutdown(socket.SHUT_RDWR)
        self.drop_connections()

    def freeze(self) -> None:
        """Keep all connections and accept new ones, but forward nothing, not even that one was closed."""
        self._set_flowing(False)

    def slow_down(self, seconds: float) -> None:
        """Hold everything that is sent from now on for so long; 0, or `heal`: no more."""
        self.delay = seconds

    def heal(self) -> None:
        """Accept and forward again, at once. What was sent while frozen is delivered, in order."""
        self.delay = 0.0
        with self._changed:
            if not self._listening:
                self._listener.listen(128)
                self._listening = True
        self._set_flowing(True)

    def drop_connections(self) -> None:
        """Close all connections that there are now; what they hold undelivered is lost."""
        with self._changed:
            links, self._links = self._links, []
            for link in links:
                link.close()
            self._changed.notify_all()

    # -- life

    def start(self) -> Self:
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((HOST, self.port))
        self.heal()
        self._thread.start()
        return self

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
        self.cut()
        self._thread.join()
        self._listener.close()

    # -- inside

    def _set_flowing(self, flowing: bool) -> None:
        with self._changed:
            self._flowing = flowing
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._listening or self._stopped)
                if self._stopped:
                    return
            with suppress(OSError):  # cut while it waited
                client, _ = self._listener.accept()
                self._admit(client)

    def _admit(self, client: socket.socket) -> None:
        link = _Link(self, client)
        with self._changed:
            if not self._listening:
                client.close()
                return
            self._links = [other for other in self._links if not other.closed] + [link]
        threading.Thread(target=link.run, name="tcp-proxy-link", daemon=True).start()

    def wait_until_flowing(self, link: _Link) -> bool:
        """False when the link was closed instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._flowing or link.closed)
            return not link.closed


class _Link:
    """One client's connection, and ours to the server for it; one thread for each direction."""

    def __init__(self, proxy: TcpProxy, client: socket.socket) -> None:
        self.closed = False
        self._proxy = proxy
        self._client = client
        self._server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    def run(self) -> None:
        with self._client, self._server:
            try:
                if self._proxy.wait_until_flowing(self):
                    self._server.connect(self._proxy.target)
                    for sock in (self._client, self._server):
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    back = self._server, self._client
                    answers = threading.Thread(target=self._pump, args=back, daemon=True)
                    answers.start()
                    self._pump(self._client, self._server)
                    answers.join()
            except OSError:  # nobody serves there
                pass
            self.closed = True

    def close(self) -> None:
        """Wakes both threads, too, which close the sockets then."""
        self.closed = True
        for sock in (self._client, self._server):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            more = True
            while more:
                data = source.recv(1 << 16)
                if self._proxy.delay:
                    # What comes meanwhile comes together: many small pieces do not add up.
                    time.sleep(self._proxy.delay)
                more = bool(data) and self._proxy.wait_until_flowing(self)
                if more:
                    sink.sendall(data)
            # The end of a stream is held like its bytes. Each direction ends by itself, so that what one
            # side sent before it closed arrives.
            if self._proxy.wait_until_flowing(self):
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()


# --- clock and disk -------------------------------------------------------------------------------

#: On the path of a Python whose clock can be moved, and in its environment.
CLOCKWORK, CLOCK = Path(__file__).with_name("clock"), "POISON_CHAOS_CLOCK"


class Clock:
    """How wrong the clock of one worker goes, in seconds; see ``clock/sitecustomize.py``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.write_bytes(struct.pack("d", 0.0))

    def environment(self) -> dict[str, str]:
        return {CLOCK: str(self._path)}

    def move(self, seconds: float) -> None:
        # Eight bytes in one write: nobody reads half a number.
        with self._path.open("r+b", buffering=0) as file:
            file.write(struct.pack("d", seconds))


class Disk:
    """A small file system in memory at ``path``, which can be filled.

    Args:
        mebibytes: its size.
    """

    def __init__(self, path: Path, mebibytes: int) -> None:
        self._path, self._mebibytes = path, mebibytes

    @staticmethod
    def available() -> bool:
        """Whether this user may mount one."""
        return os.geteuid() == 0

    def fill(self) -> None:
        """Leave no byte."""
        with (self._path / "ballast").open("wb", buffering=0) as file:
            size = 0
            while (room := os.statvfs(self._path)).f_bavail:
                with contextlib.suppress(OSError):  # somebody else has taken some of it
                    os.posix_fallocate(file.fileno(), size, room.f_bavail * room.f_bsize)
                    size += room.f_bavail * room.f_bsize

    def clear(self) -> None:
        (self._path / "ballast").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        size = f"size={self._mebibytes}m"
        self._path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "chaos", str(self._path)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        # Lazily: a process that ends just now may still have a file open there.
        subprocess.run(["umount", "--lazy", str(self._path)], check=False)
