"""Whose ledger this is: schema, app and broker, written by the first worker, checked by every other."""

from __future__ import annotations

import secrets
from typing import Any

import redis

from celery_poison.errors import SchemaMismatch
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.keys import Keys

SCHEMA = 1
#: Scripts of this version work on these schemas, so that workers can be upgraded one by one.
ACCEPTED = (SCHEMA, SCHEMA - 1)


def enroll(client: redis.Redis, keys: Keys, app: str, broker: str) -> bytes:
    """Check that the ledger belongs to this app and broker; return its secret for fingerprints.

    Raises:
        SchemaMismatch: it belongs to another schema, app or broker.
        LedgerUnavailable: Redis is away or refuses the write.
    """
    mine = {"schema": str(SCHEMA), "app": app, "broker": broker, "secret": secrets.token_hex(16)}
    with clear_errors("opening the ledger"):
        pipe = client.pipeline()
        for name, value in mine.items():
            pipe.hsetnx(keys.meta, name, value)
        pipe.hgetall(keys.meta)
        raw: Any = pipe.execute()[-1]
    found = {key.decode(): value.decode() for key, value in raw.items()}
    if int(found["schema"]) not in ACCEPTED:
        raise SchemaMismatch(
            f"the ledger has schema {found['schema']}, this version reads {SCHEMA}:"
            " upgrade the older workers, or set another poison_namespace"
        )
    for name in ("app", "broker"):
        if found[name] != mine[name]:
            raise SchemaMismatch(
                f"the ledger {keys.prefix} belongs to {name} {found[name]!r}, not to {mine[name]!r}:"
                " give every app its own poison_namespace"
            )
    return bytes(raw[b"secret"])
