"""Whose ledger this is, asked before anything of it is published or failed, who acts, and about what."""

from __future__ import annotations

import getpass
import os
import socket
from functools import partial

from celery import Celery

from celery_poison.broker.identity import identity_of, is_same_broker, server_of
from celery_poison.errors import IllegalTransition
from celery_poison.ledger import Ledger
from celery_poison.ledger.signature import refuse_unless_owned, sign_broker
from celery_poison.ledger.views import Views
from celery_poison.model import MessageRecord
from celery_poison.rules.destinations import where_sent
from celery_poison.states import State


def move_broker(app: Celery, ledger: Ledger) -> str:
    """Sign the ledger for the broker that ``app`` has now, and for no other; return its address.

    Raises:
        SchemaMismatch: the ledger is another app's, or another kind of broker's.
        LedgerUnavailable: Redis is away or refuses the write.
    """
    mine = identity_of(app)
    found = ledger.read.meta()
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
