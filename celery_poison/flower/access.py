"""Who may come in, and who may act: the same in every version and every mode of Flower."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from tornado.web import HTTPError, RequestHandler

from celery_poison.errors import LedgerUnavailable, MessageNotFound, PoisonError
from celery_poison.fleet import GateRecord
from celery_poison.flower.choosing import ACTIONS, Action, Choice, NothingChosen, scheduled
from celery_poison.flower.held import KINDS, let_go
from celery_poison.flower.jobs import Job
from celery_poison.flower.ledger import AsyncLedger
from celery_poison.quarantine.acting import IN_FLOWER
from celery_poison.quarantine.careful import BadCare
from celery_poison.quarantine.search import BadFilter

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
    "This Flower does not ask who you are, so nobody may act here: start it with --basic_auth or --auth, or"
    " set FLOWER_UNAUTHENTICATED_API=true"
)


def ledger_of(application: Any) -> AsyncLedger:
    """Return the one way of a Flower to its ledger."""
    known: dict[str, Any] = vars(application)
    if "_poison_ledger" not in known:
        known["_poison_ledger"] = AsyncLedger(application.capp)
    ledger: AsyncLedger = known["_poison_ledger"]
    return ledger


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
        return ledger_of(self.application)

    @property
    def asks_who(self) -> bool:
        """Whether this Flower asks who somebody is."""
        return bool(self.application.options.basic_auth or self.application.options.auth)

    @property
    def closed(self) -> str:
        """Why nobody may act here; empty if those who came in may."""
        if getattr(self.application.options, "read_only", False):
            return "Read only mode is enabled"
        return "" if self.asks_who or _flag("FLOWER_UNAUTHENTICATED_API") else _NOBODY

    @property
    def bodies_closed(self) -> bool:
        """Whether bodies, which may hold what only the task should know, are kept back from whoever asks."""
        return not self.asks_who and bool(self.closed)

    def admit(self, *, token_needed: bool = True) -> None:
        """Let a request in that changes something.

        Raises:
            HTTPError: 401 or 403, with the reason.
        """
        if not self.current_user:
            raise HTTPError(403, "Log in first")
        reason = self.closed or _foreign(self.request.headers, self.request.host)
        if reason:
            raise HTTPError(403, reason)
        if token_needed:
            # Tornado's own check: Flower's lets some modes pass.
            RequestHandler.check_xsrf_cookie(self)

    @property
    def actor(self) -> str:
        """Whom the journal names as the one who decided."""
        name = self.current_user if isinstance(self.current_user, str) else ""
        _, _, credentials = self.request.headers.get("Authorization", "").partition(" ")
        if not name and self.application.options.basic_auth and credentials:
            name = b64decode(credentials).decode("utf-8", "replace").partition(":")[0]
        return f"{name or f'somebody at {self.request.remote_ip}'}{IN_FLOWER}"

    def action(self, verb: str) -> Action:
        """Return the act of that name; HTTPError 404: there is none."""
        if verb not in ACTIONS:
            raise HTTPError(404, f"There is no act {verb}")
        return ACTIONS[verb]

    async def begin(self, verb: str, choice: Choice, said: Callable[[str], str], patience: float) -> Job:
        """Begin an act, and wait at most ``patience`` seconds for its end.

        Args:
            said: returns what was said of ``note``, and of a choice or question of the act: "1" is yes.

        Raises:
            NothingChosen, BadFilter: it names nobody.
            BadCare: what was typed makes no sense.
            HTTPError: 404: there is no such act.
        """
        action, note = self.action(verb), said("note")
        choice.check()
        how: dict[str, Any] = {name: True for name in action.choices if said(name) == "1"}
        if action.asks:
            how |= scheduled({name: said(name).strip() for name in action.asks})
        job = Job(verb, choice.mids, actor=self.actor, note=note, **how)
        return await self.ledger.start(job, patience)

    async def lift_gate(self, note: str) -> GateRecord:
        """Lift the fleet gate; MessageNotFound: it is not closed."""
        lift = partial(self.ledger.quarantine.lift_gate, actor=self.actor, note=note)
        return await self.ledger.change(lift)

    async def let_go(self, kind: str, name: str, of: str, note: str) -> None:
        """End a pause, a suspension or a blockade.

        Raises:
            MessageNotFound: it is over.
            HTTPError: 400: there is no such kind.
        """
        if kind not in KINDS or not name:
            raise HTTPError(400, f"kind must be one of {', '.join(KINDS)}, and name must be given")
        app, quarantine = self.application.capp, self.ledger.quarantine
        await self.ledger.change(
            partial(let_go, app, quarantine, kind, name, of, actor=self.actor, note=note)
        )

    async def decide(self, verb: str, version: object, note: str, *, rules_only: bool) -> dict[str, Any]:
        """Apply or dismiss the pipeline's proposal of that version, and return what was done.

        Raises:
            ProposalRefused: that one does not wait any more.
            HTTPError: 400: the version is no number.
        """
        typed = str(version)
        if not (typed.isascii() and typed.isdecimal() and len(typed) < 16):
            raise HTTPError(400, "version must be the number of a proposal")
        quarantine, number, how = self.ledger.quarantine, int(typed), {"actor": self.actor, "note": note}
        if verb == "apply":
            apply = partial(quarantine.apply_proposal, number, rules_only=rules_only, **how)
            return (await self.ledger.change(apply))._asdict()
        await self.ledger.change(partial(quarantine.dismiss_proposal, number, **how))
        return {"version": number}

    def job(self, id: str) -> Job:
        """Return an act that is, or was, under way; HTTPError 404: it is not remembered."""
        job = self.ledger.jobs.get(id)
        if job is None:
            raise HTTPError(404, "Nobody remembers this act: Flower was started again since. See the journal")
        return job

    def send_body(self, body: bytes) -> None:
        """Answer with a stored body: a browser saves it and never shows it."""
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Content-Disposition", 'attachment; filename="body.bin"')
        self.finish(body)


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
    if origin is not None and urlsplit(origin).netloc != host:
        return "Cross-origin request forbidden"
    return ""


def _flag(name: str) -> bool:
    return (os.environ.get(name) or "false").strip().lower() in ("1", "true", "t", "yes", "y", "on")
