"""Puts the metrics where Prometheus finds them: in a registry, and behind a port if nobody else serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from celery import Celery

from celery_poison.errors import ConfigurationError
from celery_poison.quarantine.read_model import ReadModel

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: Seconds between two looks at the ledger.
INTERVAL = 10.0

_MISSING = "metrics need prometheus_client: pip install 'celery-poison[metrics]'"


_exporters: WeakKeyDictionary[CollectorRegistry, Exporter] = WeakKeyDictionary()


class Exporter:
    """The metrics of one app in one registry, until :meth:`close`."""

    def __init__(self, app: Celery, interval: float, registry: CollectorRegistry) -> None:
        from celery_poison.metrics.collector import Sampler, SnapshotCollector

        self.app = app
        self._registry = registry
        self._sampler = Sampler(ReadModel(app).look, interval)
        self._collector = SnapshotCollector(self._sampler)
        try:
            registry.register(self._collector)
        except ValueError as error:
            raise ConfigurationError(f"this process exports such metrics already: {error}") from None
        _exporters[registry] = self
        self._servers: list[Any] = []
        self._sampler.start()

    def serve(self, port: int, address: str = "127.0.0.1") -> int:
        """Answer ``http://address:port/metrics`` from threads of its own; return the port, also for port 0.

        Raises:
            ConfigurationError: the address is taken, or not this machine's.
        """
        from prometheus_client import start_http_server

        try:
            server, _ = start_http_server(port, address, self._registry)
        except OSError as error:
            raise ConfigurationError(f"cannot serve metrics at {address}:{port}: {error}") from None
        self._servers.append(server)
        return int(server.server_port)

    def close(self) -> None:
        """Serve nothing any more, and take the metrics out of the registry."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._sampler.stop()
        self._registry.unregister(self._collector)
        _exporters.pop(self._registry, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def register(
    app: Celery, *, interval: float = INTERVAL, registry: CollectorRegistry | None = None
) -> Exporter:
    """Export the metrics of ``app``'s ledger, beginning now; Redis may be away. Safe to call again.

    Args:
        interval: seconds between two looks at the ledger.
        registry: default: that of the process, which Flower's ``/metrics`` serves.

    Raises:
        ConfigurationError: prometheus_client is not installed, a setting is wrong, or this process exports
            the metrics of another app already.
    """
    try:
        from prometheus_client import REGISTRY
    except ModuleNotFoundError:
        raise ConfigurationError(_MISSING) from None
    chosen = registry or REGISTRY
    known = _exporters.get(chosen)
    return known if known is not None and known.app is app else Exporter(app, interval, chosen)
