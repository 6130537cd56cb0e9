"""Which broker an app has, by what that calls itself: so a ledger is signed, and recognised."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery import Celery
from kombu.utils.url import parse_url

from celery_poison.broker.bounds import bounded_options
from celery_poison.broker.kinds import broker_of
from celery_poison.errors import ConfigurationError, LedgerUnavailable


def identity_of(app: Celery) -> dict[str, str]:
    """Return how workers of ``app`` sign the ledger: the app's name, its broker, and where that is.

    Raises:
        ConfigurationError: kombu knows no such broker.
    """
    try:
        broker = app.connection_for_read()
        kind = broker.transport.driver_type
        address = _address_of(broker)
    except (KeyError, ImportError) as error:
        raise ConfigurationError(f"broker_url: {error.args[0] if error.args else error}") from None
    return {"app": app.main or "celery", "broker": f"{kind}/{broker.virtual_host}", "address": address}


def _address_of(broker: Any) -> str:
    """Return host and port of a broker, and of those that it may fail over to, with spaces between them."""
    options, addresses = broker.transport_options or {}, set()
    for url in broker.alt or [broker.as_uri()]:
        try:
            known = parse_url(url)
        except ValueError:
            continue
        if host := known.get("hostname"):
            port = known.get("port") or broker.transport.default_port or ""
            # One Sentinel may watch several masters.
            master = f"/{options['master_name']}" if options.get("master_name") else ""
            addresses.add(f"{host.lower()}:{port}{master}".replace(" ", ""))
    return " ".join(sorted(addresses))


def server_of(app: Celery, at: str = "") -> str:
    """Return the broker's own name, by whatever address it was reached; empty where it has none.

    A Redis has a new name when it has been restarted, RabbitMQ has its cluster's.

    Args:
        at: host and port to ask in place of the app's own.
    """
    with (
        suppress(Exception),  # each transport has errors of its own
        app.connection_for_read(transport_options=bounded_options(app)) as connection,
    ):
        if at:
            host, _, port = at.rpartition(":")
            connection.hostname, connection.port = host, int(port)
            connection.alt, connection.cycle = [], None  # no other answers in its place
        return broker_of(connection).name_of_server(connection)
    return ""


def is_same_broker(app: Celery, signed: Mapping[str, str]) -> bool:
    """Whether the broker that a ledger is signed with is that of ``app``, by another name.

    Raises:
        LedgerUnavailable: this broker does not answer. Workers go on as without a ledger, and ask again.
    """
    here = server_of(app)
    if not here:
        raise LedgerUnavailable(
            f"the broker at {identity_of(app)['address']} does not say what it is, and this ledger belongs to"
            f" that at {signed['address']}: whether they are one, is asked again"
        )
    # Restarted, a Redis calls itself otherwise: then the name that was signed leads to it, too.
    return here == signed["server"] or here in (server_of(app, at) for at in signed["address"].split())
