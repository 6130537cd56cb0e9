"""A connection that can be cut, frozen and slowed down."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from typing import Any, Self
from urllib.parse import urlsplit

from celery_poison.testing.servers import Running, free_ports

HOST = "127.0.0.1"


class TcpProxy(Running):
    """Forwards a port of its own to a server, until it is told not to.

    Bytes that were under way when it is cut or frozen may still arrive. Linux only: elsewhere a port
    that has stopped listening cannot be kept.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = target_host, target_port
        self.port = free_ports()[0]
        self.delay = 0.0
        self._flowing = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None] | None] = set()

    def url(self, direct: str) -> str:
        """The URL that leads through here to where `direct` leads; user, path and options stay."""
        parts = urlsplit(direct)
        user, at, _ = parts.netloc.rpartition("@")
        return direct.replace(parts.netloc, f"{user}{at}{HOST}:{self.port}", 1)

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self._do(self._refuse())

    def freeze(self) -> None:
        """Keep all connections and accept new ones, but forward nothing, not even that one was closed."""
        self._flowing.clear()

    def strand(self) -> None:
        """Forward nothing more on the connections that there are, and close none; later ones work."""
        self._do(self._strand())

    def slow_down(self, seconds: float = 0.1) -> None:
        """Hold everything that is sent from now on for a moment."""
        self.delay = seconds

    def heal(self) -> None:
        """Accept and forward again, at once. What was sent while frozen is delivered, in order."""
        self.delay = 0.0
        self._do(self._heal())

    def drop_connections(self) -> None:
        """Close all connections that there are now; what they hold undelivered is lost."""
        self._do(self._drop())

    def start(self) -> Self:
        # Bound, and never listening: nobody else gets the port while it is cut.
        self._holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind((HOST, self.port))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        self.heal()
        return self

    def stop(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._holder.close()

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._drop()

    async def _heal(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._link, HOST, self.port)
        self._flowing.set()

    async def _strand(self) -> None:
        self._flowing.clear()  # for good: what stands waits for this one
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def _drop(self) -> None:
        links = [*filter(None, self._links)]
        for link in links:
            link.cancel()
        await asyncio.gather(*links)

    async def _link(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One client's connection, and ours to the server for it."""
        task, writers = asyncio.current_task(), [to_client]
        self._links.add(task)
        try:
            if self._server is None:
                raise ConnectionAbortedError("cut while it came")
            flowing = self._flowing
            await flowing.wait()
            server, to_server = await asyncio.open_connection(*self.target)
            writers.append(to_server)
            await asyncio.gather(
                self._pump(client, to_server, flowing), self._pump(server, to_client, flowing)
            )
            for writer in writers:
                writer.close()
        except (OSError, asyncio.CancelledError):  # nobody serves there; or it is dropped
            for writer in writers:
                writer.transport.abort()
        finally:
            self._links.discard(task)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flowing: asyncio.Event
    ) -> None:
        data = b"not read yet"
        while data:
            data = await source.read(1 << 16)
            if self.delay:
                # What comes meanwhile comes together: many small pieces do not add up.
                await asyncio.sleep(self.delay)
            await flowing.wait()
            sink.write(data)
            await sink.drain()
        # The end of a stream is held like its bytes. Each direction ends by itself, so that what one side
        # sent before it closed arrives.
        sink.write_eof()
