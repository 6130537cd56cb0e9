"""Whose ledger this is, asked before anything of it is published or failed, who acts, and about what."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from celery import Celery
from kombu.utils.url import parse_url

from celery_poison.broker.bounds import bounded_options
from celery_poison.broker.kinds import broker_of
from celery_poison.errors import ConfigurationError, IllegalTransition, LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.ledger.signature import refuse_unless_owned, sign_broker
from celery_poison.model import MessageRecord
from celery_poison.quarantine.views import Views
from celery_poison.rules.destinations import where_sent
from celery_poison.states import State


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
    """Return what the broker calls itself, by whatever name it was reached; empty where it says nothing.

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


def is_same_broker(app: Celery, found: Mapping[str, str]) -> bool:
    """Whether the broker that a ledger is signed with is that of ``app``, by another name.

    Raises:
        LedgerUnavailable: this broker does not answer. Workers go on as without a ledger, and ask again.
    """
    here = server_of(app)
    if not here:
        raise LedgerUnavailable(
            f"the broker at {identity_of(app)['address']} does not say what it is, and this ledger belongs to"
            f" that at {found['address']}: whether they are one, is asked again"
        )
    # Restarted, a Redis calls itself otherwise: then the name that was signed leads to it, too.
    return here == found["server"] or here in (server_of(app, at) for at in found["address"].split())


def move_broker(app: Celery, ledger: Ledger) -> str:
    """Sign the ledger for the broker that ``app`` has now, and for no other; return its address.

    Raises:
        SchemaMismatch: the ledger is another app's, or another kind of broker's.
        LedgerUnavailable: Redis is away or refuses the write.
    """
    mine = identity_of(app)
    found = Views(ledger).meta()
    refuse_unless_owned({**found, "address": ""}, mine, lambda found: True)
    sign_broker(ledger.client, ledger.keys, address=mine["address"], server=server_of(app))
    return mine["address"]


def check_owner(app: Celery, queries: Views) -> bool:
    """Check that the ledger is this app's; return False when no worker has signed it yet.

    Raises:
        SchemaMismatch: it belongs to another schema, app or broker.
    """
    if signed := queries.meta():
        refuse_unless_owned(signed, identity_of(app), partial(is_same_broker, app))
    return bool(signed)


def refuse_unless_kept(record: MessageRecord, verb: str) -> None:
    """Say what happened instead; the ledger checks again, atomically, when it reserves.

    Raises:
        IllegalTransition: this cannot be decided about the message, or not any more.
    """
    if record.state == State.NDLV and record.sent_at and verb in ("release", "edit"):
        raise IllegalTransition(where_sent(record.destination))
    if record.state in (State.TBDL, State.DLNG):
        how = ": it was released, and fail and discard take it" if record.probation else ""
        raise IllegalTransition(f"the message is in state {record.state}, not in quarantine{how}")
    if record.state == State.FAIL:
        copy = f": its changed copy is {record.edited_to}" if record.edited_to else ""
        raise IllegalTransition(f"the message was {record.resolution} by {record.actor or 'somebody'}{copy}")


def refuse_to_run_again(record: MessageRecord, said_yes: bool) -> None:
    """Refuse what must not run twice and has begun, unless a person says that it may (NEW-16).

    Raises:
        IllegalTransition: see there.
    """
    if record.not_rerun and not said_yes:
        raise IllegalTransition(
            "it has begun once, and its task says rerun=False: look how far it came; if it may run again, add"
            " --yes-run-again (yes_run_again=True in Python, the tick of that name in Flower)"
        )


def default_actor() -> str:
    """Return ``login@host`` of this process: the actor where none is named."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user need not have a name
        login = str(os.getuid())
    return f"{login}@{socket.gethostname()}"


_SECRETS = re.compile(r"//[^;?]*@|\?[^;]*")


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query, which may hold either."""
    return _SECRETS.sub(lambda found: "//" if found[0].startswith("//") else "", url)
