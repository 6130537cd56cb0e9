"""The thread that looks at the ledger, and the collector that gives Prometheus its last look at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self
from weakref import WeakKeyDictionary

from celery import Celery
from celery.utils.log import get_logger
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from celery_poison.desk.read_model import ReadModel, Snapshot
from celery_poison.errors import ConfigurationError
from celery_poison.metrics.families import FAMILIES, HEALTH

logger = get_logger("celery_poison")

#: After so many intervals without a new snapshot, the last one counts as out of date.
PATIENCE = 3

_exporters: WeakKeyDictionary[CollectorRegistry, tuple[Celery, Exporter]] = WeakKeyDictionary()


class Exporter(Collector):
    """Looks every ``interval`` seconds in a daemon thread; hands a registry what it saw last, at once.

    Args:
        look: may block and may raise; both show in :attr:`up`.

    Attributes:
        errors: looks that failed so far.
    """

    def __init__(self, look: Callable[[], Snapshot], interval: float, registry: CollectorRegistry) -> None:
        self._look, self._interval, self._registry = look, interval, registry
        self._latest, self._began = Snapshot(), time.monotonic()
        self._succeeded: bool | None = None
        self.errors = 0
        self._stopped = threading.Event()
        self._servers: list[Any] = []
        registry.register(self)

    def start(self) -> Self:
        threading.Thread(target=self._work, name="poison-metrics", daemon=True).start()
        return self

    def serve(self, port: int, address: str = "127.0.0.1") -> int:
        """Answer ``http://address:port/metrics`` from threads of its own; return the port, also for port 0.

        Raises:
            ConfigurationError: the address is taken, or not this machine's.
        """
        try:
            server, _ = start_http_server(port, address, self._registry)
        except OSError as error:
            raise ConfigurationError(f"cannot serve metrics at {address}:{port}: {error}") from None
        self._servers.append(server)
        return int(server.server_port)

    def close(self) -> None:
        """Serve nothing any more, and leave the registry; does not wait for a look that is under way."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._stopped.set()
        self._registry.unregister(self)
        _exporters.pop(self._registry, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def age(self) -> float | None:
        """Seconds since the newest snapshot was taken; None before the first."""
        return self._latest.age if self._latest.overview else None

    @property
    def up(self) -> bool | None:
        """Whether the last look succeeded, not too long ago; None while the first is under way."""
        silent = time.monotonic() - max(self._began, self._latest.at)
        return False if silent > PATIENCE * self._interval + self._latest.took else self._succeeded

    def describe(self) -> Iterator[Metric]:
        """Yield the names only: a registry asks when this is registered."""
        return (each.metric() for each in (*FAMILIES, *HEALTH))

    def collect(self) -> Iterator[Metric]:
        seen = self._latest
        yield from (each.filled(self) for each in HEALTH)
        if seen.overview is not None:
            yield from (each.filled(seen, seen.overview) for each in FAMILIES)

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                self._latest, self._succeeded = self._look(), True
            except Exception as error:
                self.errors += 1
                if self._succeeded is not False:
                    logger.warning("celery_poison: metrics are not up to date: %s", error)
                self._succeeded = False
            self._stopped.wait(self._interval)


def export(app: Celery, interval: float, registry: CollectorRegistry) -> Exporter:
    """Return the exporter of ``app`` in a registry, which may be there already."""
    exported, exporter = _exporters.get(registry, (None, None))
    if exporter is None or exported is not app:
        try:
            exporter = Exporter(ReadModel(app).look, interval, registry).start()
        except ValueError as error:
            raise ConfigurationError(f"this process exports such metrics already: {error}") from None
        _exporters[registry] = app, exporter
    return exporter
