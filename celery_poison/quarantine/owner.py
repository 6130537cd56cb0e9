"""Whose ledger this is, asked before anything of it is published or failed, who acts, and about what."""

from __future__ import annotations

import getpass
import os
import re
import socket

from celery import Celery

from celery_poison.destinations import where_sent
from celery_poison.errors import ConfigurationError, IllegalTransition, SchemaMismatch
from celery_poison.ledger.connection import ACCEPTED
from celery_poison.ledger.queries import Queries
from celery_poison.model import MessageRecord
from celery_poison.states import State


def identity_of(app: Celery) -> dict[str, str]:
    """Return how workers of ``app`` sign the ledger: the app's name and where its broker keeps queues.

    Raises:
        ConfigurationError: kombu knows no such broker.
    """
    try:
        broker = app.connection_for_read()
        kind = broker.transport.driver_type
    except (KeyError, ImportError) as error:
        raise ConfigurationError(f"broker_url: {error.args[0] if error.args else error}") from None
    return {"app": app.main or "celery", "broker": f"{kind}/{broker.virtual_host}"}


def check_owner(app: Celery, queries: Queries) -> bool:
    """Check that the ledger is this app's; return False when no worker has signed it yet.

    Raises:
        SchemaMismatch: it belongs to another schema, app or broker.
    """
    found = queries.meta()
    if not found:
        return False
    if not found.get("schema", "").isdigit() or int(found["schema"]) not in ACCEPTED:
        raise SchemaMismatch(f"the ledger has schema {found.get('schema')!r}, which this version cannot read")
    for name, mine in identity_of(app).items():
        if found.get(name) != mine:
            raise SchemaMismatch(
                f"this ledger belongs to {name} {found.get(name)!r}, not to {mine!r}: its messages would go"
                " to the wrong place. Choose the right app with -A, or its poison_namespace"
            )
    return True


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


def default_actor() -> str:
    """Return ``login@host`` of this process: who acts where nobody says so."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user need not have a name
        login = str(os.getuid())
    return f"{login}@{socket.gethostname()}"


_SECRETS = re.compile(r"//[^;?]*@|\?[^;]*")


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query, which may hold either."""
    return _SECRETS.sub(lambda found: "//" if found[0].startswith("//") else "", url)
