"""Whose ledger it is: how an app and its broker sign it, and who is refused."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import redis
import redis.sentinel

from celery_poison.basics.text import command, decoded
from celery_poison.errors import SchemaMismatch
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.keys import Keys

SCHEMA = 1
#: Scripts of this version work on these schemas, so that workers can be upgraded one by one.
ACCEPTED = (SCHEMA, SCHEMA - 1)


def enroll(
    client: redis.Redis,
    keys: Keys,
    app: str,
    broker: str,
    address: str = "",
    is_same: Callable[[Mapping[str, str]], bool] = lambda found: False,
) -> bytes:
    """Check that the ledger belongs to this app and broker; return its secret for fingerprints.

    Args:
        broker: kind and virtual host.
        address: host and port of it, or of each that one fails over to, with spaces between them; empty for
            a broker without any.
        is_same: whether the broker that signed the ledger is this one, by another name; asked only where the
            address is a new one.

    Raises:
        SchemaMismatch: it belongs to another schema, app or broker.
        LedgerUnavailable: Redis is away or refuses the write.
    """
    mine = {"schema": str(SCHEMA), "app": app, "broker": broker, "secret": secrets.token_hex(16)}
    mine |= {"address": address} if address else {}
    with clear_errors("opening the ledger"):
        pipe = client.pipeline()
        for name, value in mine.items():
            pipe.hsetnx(keys.meta, name, value)
        pipe.hgetall(keys.meta)
        raw: Any = pipe.execute()[-1]
    found = {decoded(key): value.decode(errors="replace") for key, value in raw.items()}
    refuse_unless_owned(found, mine, is_same)
    addresses = {*found.get("address", "").split()}
    if new := {*address.split()} - addresses:
        sign_broker(client, keys, address=" ".join(sorted(addresses | new)))
    return bytes(raw[b"secret"])


def sign_broker(client: redis.Redis, keys: Keys, **names: str) -> None:
    """Write down where the broker of this ledger is (``address``), or what it calls itself (``server``).

    Raises:
        LedgerUnavailable: Redis is away or refuses the write.
    """
    if names := {name: value for name, value in names.items() if value}:
        with clear_errors("signing the ledger"):
            client.hset(keys.meta, items=[word for pair in names.items() for word in pair])


def refuse_unless_owned(
    signed: Mapping[str, str], mine: Mapping[str, str], is_same: Callable[[Mapping[str, str]], bool]
) -> None:
    """Compare how a ledger is signed with how this app signs it.

    Raises:
        SchemaMismatch: it belongs to another schema, app or broker.
    """
    schema = signed.get("schema", "")
    if schema not in map(str, ACCEPTED):
        raise SchemaMismatch(
            f"the ledger has schema {schema[:40]!r}, this version reads {SCHEMA}:"
            " upgrade the older workers, or set another poison_namespace"
        )
    for name in ("app", "broker"):
        if signed.get(name) != mine[name]:
            raise SchemaMismatch(
                f"this ledger belongs to {name} {signed.get(name)!r}, not to {mine[name]!r}: its messages"
                " would go to the wrong place. Choose the right app with -A, or its poison_namespace:"
                " every app has its own"
            )
    known, here = signed.get("address", "").split(), mine.get("address", "").split()
    # Another name may lead to the same server; what it calls itself is known once a worker was connected.
    if known and here and not {*known} & {*here} and signed.get("server") and not is_same(signed):
        raise SchemaMismatch(
            f"this ledger belongs to the broker at {' '.join(known)}, not to that at {' '.join(here)}:"
            " its messages would go to the wrong place. Give this one its own poison_namespace; or, if the"
            " broker has moved, stop the workers of the old one and run"
            f" `{command('poison doctor --broker-moved')}` once"
        )
