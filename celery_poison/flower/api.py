"""The JSON API, under Flower's ``/api/`` and its rule: 401 where nobody is asked who he is, unless opened."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from http import HTTPStatus
from typing import Any, cast

from flower.api import BaseApiHandler
from tornado.web import HTTPError, authenticated

from celery_poison.errors import PoisonError
from celery_poison.flower.access import CLIENT_HEADER, Guarded, status_of, version_of
from celery_poison.flower.choosing import ACTIONS, TABS, Choice, Listing
from celery_poison.flower.jobs import Job
from celery_poison.flower.message import PATIENCE
from celery_poison.flower.pages import chooser, find
from celery_poison.quarantine.body import decoded
from celery_poison.quarantine.overview import Overview
from celery_poison.quarantine.search import By, grouped

Method = Callable[..., Awaitable[None]]

#: Messages in one answer, unless a smaller limit is asked for.
MOST = 1000
#: Seconds for which an answer waits for an act to end, before it says where to ask.
QUICK = 2.0


class Api(Guarded, BaseApiHandler):
    """A route of the API; errors are JSON objects with an ``error``."""

    def prepare(self) -> None:
        super().prepare()
        if self.request.method == "POST":
            self.admit(token_needed=not self.request.headers.get(CLIENT_HEADER))

    def answer(self, value: Any) -> None:
        self.set_header("Content-Type", "application/json; charset=UTF-8")
        # ASCII: whatever was stored, lone surrogates too, arrives as it was.
        self.finish(json.dumps(value, default=str))

    def write_error(self, status_code: int, **more: Any) -> None:
        error = (more.get("exc_info") or (None, None))[1]
        sentence = error.log_message if isinstance(error, HTTPError) and error.log_message else ""
        if status_code == HTTPStatus.UNAUTHORIZED and self.application.options.basic_auth:
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        self.set_status(status_code)
        self.answer({"error": sentence or HTTPStatus(status_code).phrase})

    def number(self, name: str, default: int) -> int:
        text = self.get_query_argument(name, "")
        if text and not (text.isdecimal() and len(text) < 10):
            raise HTTPError(400, f"{name} must be a number")
        return int(text) if text else default

    async def overview(self) -> Overview:
        """Return how things stand; HTTPError 503: nothing is known so far."""
        overview = (await self.ledger.look()).overview
        if overview is None:
            raise HTTPError(503, self.ledger.trouble)
        return overview

    def _wanted(self) -> dict[str, Any]:
        try:
            wanted = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            raise HTTPError(400, "the request's body is no JSON") from None
        if not isinstance(wanted, dict) or not isinstance(wanted.get("ids") or [], list):
            raise HTTPError(400, 'write {"ids": [...]}, {"filter": "task=..."} or {"all": true}')
        return wanted


def telling(method: Method) -> Method:
    """Answer our own errors with their status and sentence."""

    @wraps(method)
    async def answered(self: Api, *words: str) -> None:
        try:
            await method(self, *words)
        except PoisonError as trouble:
            raise HTTPError(status_of(trouble), str(trouble)) from None

    checked: Any = authenticated(answered)
    return cast(Method, checked)


class Status(Api):
    @telling
    async def get(self) -> None:
        overview = await self.overview()
        snapshot = self.ledger.snapshot
        own = {"on_trial": snapshot.trials, "oldest": snapshot.oldest}
        stale = {"age": round(snapshot.age, 3), "trouble": self.ledger.trouble}
        self.answer({**overview.as_dict(), **own, **stale})


class Groups(Api):
    """What ``celery poison groups --json`` prints, by task and cause, or with ``?by=fingerprint`` finer."""

    @telling
    async def get(self) -> None:
        by = self.get_query_argument("by", By.CAUSE)
        if by not in [*By]:
            raise HTTPError(400, f"by must be one of {', '.join(By)}")
        snapshot = await self.ledger.look_at_all()
        found = snapshot.groups
        if by != By.CAUSE:
            found = await self.ledger.think(lambda: grouped(snapshot.view.records, By(by)))
        self.answer([group.as_dict() for group in found])


class Messages(Api):
    @telling
    async def get(self) -> None:
        await self.ledger.look()
        ask = partial(self.get_query_argument, default="")
        if ask("state") not in ("", *TABS):
            raise HTTPError(400, f"state must be one of {', '.join(TABS)}")
        listing = Listing.parse(ask("state"), ask("filter"), str(self.number("offset", 0)), ask("order"))
        found = await find(self.ledger, listing, rows=min(MOST, self.number("limit", MOST)))
        self.set_header("X-Total", "" if found.total is None else str(found.total))
        self.answer([record.as_dict() for record in found.rows])


class Message(Api):
    @telling
    async def get(self, id: str) -> None:
        detail = await self.ledger.ask(lambda: self.ledger.quarantine.detail(id), PATIENCE)
        self.answer(detail.as_dict())


class Body(Api):
    """The body: as received, or with ``?decoded=1`` as JSON."""

    @telling
    async def get(self, mid: str) -> None:
        stored = await self.ledger.ask(lambda: self.ledger.quarantine.message(mid))
        if self.get_query_argument("decoded", "") == "1":
            self.answer({"body": decoded(stored)})
        else:
            self.send_body(stored.body)


class Incidents(Api):
    @telling
    async def get(self) -> None:
        limit = min(MOST, self.number("limit", 100))
        found = await self.ledger.ask(lambda: self.ledger.quarantine.queries.incidents(limit))
        self.answer([incident.as_dict() for incident in found])


class Actions(Api):
    @telling
    async def get(self) -> None:
        acts = [
            {"verb": each.verb, "story": each.story, "states": sorted(each.states), "choices": each.choices}
            for each in ACTIONS.values()
        ]
        self.answer({"actions": acts, "closed": self.closed})


class Act(Api):
    """``{"ids": [...]}`` or ``{"filter": "..."}`` or ``{"all": true}``, with ``note`` and ``dry_run``."""

    @telling
    async def post(self, verb: str) -> None:
        action, wanted = self.action(verb), self._wanted()
        text = str(wanted.get("filter") or "")
        everything = bool(text) or wanted.get("all") is True
        choice = Choice(tuple(map(str, wanted.get("ids") or ())), everything, text)
        choice.check()
        if wanted.get("dry_run"):
            kept = self.ledger.model.quarantined
            found = await self.ledger.ask(lambda: choice.among(kept.refresh().records), PATIENCE)
            self.answer({"matches": len(found), "messages": [record.as_dict() for record in found[:MOST]]})
            return
        switched = {name: True for name in action.choices if wanted.get(name) is True}
        note = str(wanted.get("note") or "")
        job = Job(verb, partial(chooser, self.ledger, choice), actor=self.actor, note=note, **switched)
        await self.ledger.start(job, QUICK)
        self.set_status(HTTPStatus.OK if job.finished else HTTPStatus.ACCEPTED)
        self.answer(job.as_dict())


class LiftGate(Api):
    """Lifts the fleet gate, ``{"note": "..."}``; 404 if it is not closed."""

    @telling
    async def post(self) -> None:
        note = str(self._wanted().get("note") or "")
        lift = self.ledger.quarantine.lift_gate
        self.answer((await self.ledger.change(lambda: lift(actor=self.actor, note=note))).as_dict())


class Proposal(Api):
    """What the pipeline proposes; null if nothing waits."""

    @telling
    async def get(self) -> None:
        waiting = (await self.overview()).proposal
        self.answer(waiting and waiting.as_dict())


class DecideProposal(Api):
    """``{"version": N, "note": "..."}``: 409 if that one does not wait any more."""

    @telling
    async def post(self, verb: str) -> None:
        wanted = self._wanted()
        version = version_of(wanted.get("version"))
        how: dict[str, Any] = {"actor": self.actor, "note": str(wanted.get("note") or "")}
        quarantine = self.ledger.quarantine
        if verb == "apply":
            how["rules_only"] = wanted.get("rules_only") is True
            done = await self.ledger.change(lambda: quarantine.apply_proposal(version, **how))
            self.answer(done._asdict())
        else:
            await self.ledger.change(lambda: quarantine.dismiss_proposal(version, **how))
            self.answer({"version": version})


class JobState(Api):
    @telling
    async def get(self, id: str) -> None:
        self.answer(self.job(id).as_dict())

    @telling
    async def post(self, id: str) -> None:
        self.job(id).stop()
        self.answer(self.job(id).as_dict())
