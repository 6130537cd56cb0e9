"""Who may come in, and who may act: the same in every version and every mode of Flower."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from flower.utils import strtobool
from tornado.web import HTTPError, RequestHandler

from celery_poison.desk.care import BadCare
from celery_poison.desk.decisions import IN_FLOWER
from celery_poison.desk.search import BadFilter
from celery_poison.errors import LedgerUnavailable, MessageNotFound, PoisonError
from celery_poison.flower.async_ledger import AsyncLedger
from celery_poison.flower.choosing import NothingChosen

#: A program that cannot hold a cookie says by this header that no browser was talked into its request: pages
#: of other sites cannot set it, and no version of Flower allows it to them.
CLIENT_HEADER = "X-Poison-Client"

_SECURITY = {
    # Escaping comes first; should it ever fail, nothing that was injected would run.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline';"
    " object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CORS = ("Access-Control-Allow-Origin", "Access-Control-Allow-Headers", "Access-Control-Allow-Methods")
_NOBODY = (
    "This Flower does not ask who you are, so acts are refused here: start it with --basic_auth or --auth, or"
    " set FLOWER_UNAUTHENTICATED_API=true"
)


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
    def ledger(self) -> AsyncLedger:
        """The one way of this Flower to its ledger."""
        known: dict[str, Any] = vars(self.application)
        if "_poison_ledger" not in known:
            known["_poison_ledger"] = AsyncLedger(self.application.capp)
        ledger: AsyncLedger = known["_poison_ledger"]
        return ledger

    @property
    def asks_who(self) -> bool:
        """Whether this Flower asks for a name and password."""
        return bool(self.application.options.basic_auth or self.application.options.auth)

    @property
    def why_read_only(self) -> str:
        """Why acts are refused here; empty if those who came in may act."""
        if getattr(self.application.options, "read_only", False):
            return "Read only mode is enabled"
        return (
            ""
            if self.asks_who or strtobool(os.environ.get("FLOWER_UNAUTHENTICATED_API") or "false")
            else _NOBODY
        )

    @property
    def bodies_closed(self) -> bool:
        """Whether bodies, which may hold what only the task should know, are kept back from every reader."""
        return not self.asks_who and bool(self.why_read_only)

    def admit(self, *, token_needed: bool = True) -> None:
        """Let a request in that changes something.

        Raises:
            HTTPError: 401 or 403, with the reason.
        """
        if not self.current_user:
            raise HTTPError(403, "Log in first")
        reason = self.why_read_only or _foreign(self.request.headers, self.request.host)
        if reason:
            raise HTTPError(403, reason)
        if token_needed:
            # Tornado's own check: Flower's lets some modes pass.
            RequestHandler.check_xsrf_cookie(self)

    def check_xsrf_cookie(self) -> None:
        """As Flower does; it cannot read every origin."""
        try:
            super().check_xsrf_cookie()
        except ValueError:
            raise HTTPError(403, "Cross-origin request forbidden") from None

    @property
    def actor(self) -> str:
        """The person whom the journal names as the one who decided."""
        name = self.current_user if isinstance(self.current_user, str) else ""
        _, _, credentials = self.request.headers.get("Authorization", "").partition(" ")
        if not name and self.application.options.basic_auth and credentials:
            name = b64decode(credentials).decode("utf-8", "replace").partition(":")[0]
        return f"{name or f'somebody at {self.request.remote_ip}'}{IN_FLOWER}"

    def said(self, name: str) -> str:
        """Return the value of a field that the person who acts has sent; "1" is yes."""
        raise NotImplementedError

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, PoisonError):
            super().log_exception(kind, error, trace)

    def send_error(self, status_code: int = 500, **more: Any) -> None:
        """Answer with the status of an error of ours."""
        error = (more.get("exc_info") or (None, None))[1]
        super().send_error(status_of(error) if isinstance(error, PoisonError) else status_code, **more)

    def send_body(self, body: bytes, name: str = "body.bin") -> None:
        """Answer with a stored body, or a file: a browser saves it and never shows it."""
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        self.finish(body)


def sentence_of(error: object) -> str:
    """Return the sentence of an error; empty where the error has none."""
    return str(error) if isinstance(error, PoisonError) else getattr(error, "log_message", None) or ""


def status_of(trouble: PoisonError) -> int:
    """Return the HTTP status of one of our errors."""
    if isinstance(trouble, LedgerUnavailable):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(trouble, MessageNotFound):
        return HTTPStatus.NOT_FOUND
    wrong = isinstance(trouble, (BadFilter, NothingChosen, BadCare))
    return HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.CONFLICT


def _foreign(headers: Mapping[str, str], host: str) -> str:
    """Return why a request that changes something comes from another site's page; empty if it does not."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None and site != "same-origin":
        return "Cross-site request forbidden"
    origin = headers.get("Origin")
    if origin is not None and _host_of(origin) != host:
        return "Cross-origin request forbidden"
    return ""


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # as http://[
        return ""
