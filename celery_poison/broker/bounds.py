"""Time limits of a publisher, and of a question to a broker."""

from __future__ import annotations

from typing import Any

from celery import Celery

#: Seconds; whoever publishes is told after these that the broker does not answer. Together they stay below
#: the time after which another operator may take a decision over.
CONNECT_TIMEOUT = 4.0
ANSWER_TIMEOUT = 10.0

#: Time limits and few attempts, in the words of each transport; the app's own options win.
_BOUNDS: dict[str, Any] = {
    "max_retries": 3,
    "interval_start": 0.2,
    "interval_step": 0.2,
    "socket_timeout": ANSWER_TIMEOUT,
    "socket_connect_timeout": CONNECT_TIMEOUT,
    "read_timeout": ANSWER_TIMEOUT,
    "write_timeout": ANSWER_TIMEOUT,
}


def bounded_options(app: Celery) -> dict[str, Any]:
    """Return the transport options of ``app``, with limits where it has set none."""
    return {**_BOUNDS, **(app.conf.broker_transport_options or {})}


def bounded_connection(app: Celery) -> Any:
    """Return a connection for publishing on which nothing waits for ever; not connected yet."""
    # Confirmation makes publishing wait until RabbitMQ has the message.
    return app.connection_for_write(transport_options={**bounded_options(app), "confirm_publish": True})
