"""Whose ledger this is."""

from __future__ import annotations

from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.reading.reader import Reader


class Owner(Reader):
    """Reads what the first worker signed; :mod:`celery_poison.ledger.meta` does the signing."""

    def meta(self) -> dict[str, str]:
        """Return schema, app and broker of the ledger; {} before the first worker signed it."""
        with clear_errors("reading whose ledger this is"):
            row: Any = self._client.hmget(self._keys.meta, ("schema", "app", "broker"))
        found = zip(("schema", "app", "broker"), row, strict=True)
        return {name: value.decode() for name, value in found if value is not None}
