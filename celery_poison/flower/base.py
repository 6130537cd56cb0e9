"""What every page and every API route of ours begins with: the desk, and who may do what."""

from __future__ import annotations

import os
from base64 import b64decode
from functools import cached_property
from typing import Any

from tornado.web import HTTPError, RequestHandler

from celery_poison.flower import guarding
from celery_poison.flower.actions import ACTIONS, Action
from celery_poison.flower.desk import Desk

_SECURITY = {
    # Escaping comes first; should it ever fail, nothing that was injected would run.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline';"
    " object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CORS = ("Access-Control-Allow-Origin", "Access-Control-Allow-Headers", "Access-Control-Allow-Methods")


def desk_of(application: Any) -> Desk:
    """Return the one desk of a Flower."""
    known: dict[str, Any] = vars(application)
    if "_poison_desk" not in known:
        known["_poison_desk"] = Desk(application.capp)
    desk: Desk = known["_poison_desk"]
    return desk


class Guarded(RequestHandler):
    """Laid over Flower's own handlers, whose authentication it keeps."""

    application: Any

    def set_default_headers(self) -> None:
        super().set_default_headers()
        for name in _CORS:  # Flower opens itself to other sites in some modes; a quarantine never is
            self.clear_header(name)
        for name, value in _SECURITY.items():
            self.set_header(name, value)

    @cached_property
    def desk(self) -> Desk:
        return desk_of(self.application)

    @property
    def closed(self) -> str:
        """Why nobody may act here, or the empty string."""
        options = self.application.options
        return guarding.closed(
            read_only=bool(getattr(options, "read_only", False)),
            authenticated=bool(options.basic_auth or options.auth),
            unauthenticated_api=_flag("FLOWER_UNAUTHENTICATED_API"),
        )

    def admit(self, *, token_needed: bool = True) -> None:
        """Let a request in that changes something.

        Raises:
            HTTPError: 401 or 403, with the reason.
        """
        if not self.current_user:
            raise HTTPError(403, "Log in first")
        reason = self.closed or guarding.foreign(self.request.headers, self.request.host)
        if reason:
            raise HTTPError(403, reason)
        if token_needed:
            # Tornado's own check: Flower's lets some modes pass.
            RequestHandler.check_xsrf_cookie(self)

    @property
    def actor(self) -> str:
        _, _, credentials = self.request.headers.get("Authorization", "").partition(" ")
        name = ""
        if self.application.options.basic_auth and credentials:
            name = b64decode(credentials).decode("utf-8", "replace").partition(":")[0]
        return guarding.actor(self.current_user, name, str(self.request.remote_ip))

    def action(self, verb: str) -> Action:
        """Return the act of that name.

        Raises:
            HTTPError: 404, there is none.
        """
        if verb not in ACTIONS:
            raise HTTPError(404, f"There is no act {verb}")
        return ACTIONS[verb]


def _flag(name: str) -> bool:
    return (os.environ.get(name) or "false").strip().lower() in ("1", "true", "t", "yes", "y", "on")
