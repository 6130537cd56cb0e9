"""Bodies as they were received, for those who may see them."""

from __future__ import annotations

from typing import Any

from celery_poison.flower.base import Guarded


def bodies_closed(handler: Guarded) -> bool:
    """Bodies may hold what nobody but the task should know: they need a Flower that asks who somebody is."""
    options = handler.application.options
    return not (options.basic_auth or options.auth) and bool(handler.closed)


def send_body(handler: Any, body: bytes) -> None:
    handler.set_header("Content-Type", "application/octet-stream")
    handler.set_header("Content-Disposition", 'attachment; filename="body.bin"')
    handler.finish(body)
