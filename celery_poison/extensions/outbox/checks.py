"""What ``doctor`` checks: the database of the user's own."""

from __future__ import annotations

from collections.abc import Iterator

from celery_poison.basics.parts import Finding
from celery_poison.extensions.outbox.database import waiting_rows
from celery_poison.extensions.outbox.settings import OutboxSettings
from celery_poison.plugin import Plugin

_CURE = "create its table, start the database, or correct poison_outbox_database; see docs/outbox.md"


def examine(plugin: Plugin) -> Iterator[Finding]:
    if rows := waiting_rows(plugin.settings.of(OutboxSettings).outbox_database):
        yield Finding("outbox", str(rows), _CURE if rows.error else "", broken=bool(rows.error))
