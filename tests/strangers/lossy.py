"""A way to a broker on which one answer is lost, and the connection with it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from celery_poison.testing.servers import Running

HOST = "127.0.0.1"


class LossyLink(Running):
    """Forwards to a server; once :meth:`arm` was called, the server's next words are lost.

    Connections that are made after that wait until :meth:`heal`.
    """

    def __init__(self, direct: str) -> None:
        parts = urlsplit(direct)
        self._target = parts.hostname or HOST, parts.port or 0
        self._listener = socket.create_server((HOST, 0))
        user, at, _ = parts.netloc.rpartition("@")
        self.url = direct.replace(parts.netloc, f"{user}{at}{HOST}:{self._listener.getsockname()[1]}", 1)
        self.lost, self._armed, self._healed = threading.Event(), threading.Event(), threading.Event()
        self._healed.set()

    def arm(self) -> None:
        self._healed.clear()
        self._armed.set()

    def pause(self) -> None:
        """Let new connections wait until :meth:`heal`."""
        self._healed.clear()

    def heal(self) -> None:
        self._healed.set()

    def start(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def stop(self) -> None:
        self._listener.close()
        self._healed.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._link, args=(client,), daemon=True).start()

    def _link(self, client: socket.socket) -> None:
        if not self._armed.is_set():
            self._healed.wait()
        with client, socket.create_connection(self._target) as server:
            there = threading.Thread(target=self._pump, args=(client, server, False), daemon=True)
            there.start()
            self._pump(server, client, True)

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(65536):
                if is_answer and self._armed.is_set():
                    self._armed.clear()
                    self.lost.set()
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
