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
from celery_poison.flower.actions import ACTIONS
from celery_poison.flower.base import Guarded
from celery_poison.flower.bodies import send_body
from celery_poison.flower.choice import Choice, NothingChosen
from celery_poison.flower.guarding import CLIENT_HEADER
from celery_poison.flower.jobs import Job, Order
from celery_poison.flower.listing import TABS, Listing
from celery_poison.flower.message import PATIENCE
from celery_poison.flower.page import status_of
from celery_poison.flower.proposal import version_of
from celery_poison.model import MessageRecord
from celery_poison.quarantine import story
from celery_poison.quarantine.body import decoded
from celery_poison.quarantine.dossier import find, parcel_if_kept
from celery_poison.quarantine.groups import By, grouped
from celery_poison.states import State

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
        self.finish(json.dumps(value))

    def write_error(self, status_code: int, **more: Any) -> None:
        error = (more.get("exc_info") or (None, None))[1]
        told = error.log_message if isinstance(error, HTTPError) and error.log_message else ""
        if status_code == HTTPStatus.UNAUTHORIZED and self.application.options.basic_auth:
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        self.set_status(status_code)
        self.answer({"error": told or HTTPStatus(status_code).phrase})

    def number(self, name: str, default: int) -> int:
        text = self.get_query_argument(name, "")
        if text and not (text.isdecimal() and len(text) < 10):
            raise HTTPError(400, f"{name} must be a number")
        return int(text) if text else default

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
    async def told(self: Api, *words: str) -> None:
        try:
            await method(self, *words)
        except NothingChosen as wrong:
            raise HTTPError(400, str(wrong)) from None
        except PoisonError as trouble:
            raise HTTPError(status_of(trouble), str(trouble)) from None

    checked: Any = authenticated(told)
    return cast(Method, checked)


class Status(Api):
    @telling
    async def get(self) -> None:
        snapshot = await self.desk.look()
        if snapshot.overview is None:
            raise HTTPError(503, self.desk.trouble)
        own = {"on_trial": snapshot.on_trial, "oldest": snapshot.view.oldest}
        stale = {"age": round(snapshot.age, 3), "trouble": self.desk.trouble}
        self.answer({**snapshot.overview.as_dict(), **own, **stale})


class Groups(Api):
    """What ``celery poison groups --json`` prints, by task and cause, or with ``?by=fingerprint`` finer."""

    @telling
    async def get(self) -> None:
        by = self.get_query_argument("by", By.CAUSE)
        if by not in [*By]:
            raise HTTPError(400, f"by must be one of {', '.join(By)}")
        view = (await self.desk.look_at_all()).view
        found = await self.desk.think(lambda: grouped(view.records, By(by)))
        self.answer([group.as_dict() for group in found])


class Messages(Api):
    @telling
    async def get(self) -> None:
        await self.desk.look()
        ask = partial(self.get_query_argument, default="")
        if ask("state") not in ("", *TABS):
            raise HTTPError(400, f"state must be one of {', '.join(TABS)}")
        listing = Listing.parse(ask("state"), ask("filter"), str(self.number("offset", 0)), ask("order"))
        found = await listing.find(self.desk, rows=min(MOST, self.number("limit", MOST)))
        self.set_header("X-Total", "" if found.total is None else str(found.total))
        self.answer([record.as_dict() for record in found.rows])


class Message(Api):
    @telling
    async def get(self, id: str) -> None:
        self.answer(await self.desk.ask(partial(self._read, id), PATIENCE))

    def _read(self, id: str) -> dict[str, Any]:
        quarantine = self.desk.quarantine
        record, history = find(quarantine, id)
        parcel = parcel_if_kept(quarantine, record)
        told = {**record.as_dict(), "story": story.why(record), "history": history}
        if parcel is not None:
            told.update(content_type=parcel.content_type, content_encoding=parcel.content_encoding)
            # Dates and bytes among them have no JSON of their own.
            told.update(headers=_plain(parcel.headers), properties=_plain(parcel.properties))
        return told


class Body(Api):
    """The body: as received, or with ``?decoded=1`` as JSON."""

    @telling
    async def get(self, mid: str) -> None:
        parcel = await self.desk.ask(lambda: self.desk.quarantine.message(mid))
        if self.get_query_argument("decoded", "") == "1":
            self.answer({"body": decoded(parcel)})
        else:
            send_body(self, parcel.body)


class Incidents(Api):
    @telling
    async def get(self) -> None:
        limit = min(MOST, self.number("limit", 100))
        found = await self.desk.ask(lambda: self.desk.quarantine.queries.incidents(limit))
        self.answer([incident.as_dict() for incident in found])


class Actions(Api):
    @telling
    async def get(self) -> None:
        told = [
            {"verb": each.verb, "story": each.story, "states": sorted(each.states), "choices": each.choices}
            for each in ACTIONS.values()
        ]
        self.answer({"actions": told, "closed": self.closed})


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
            found = await self.desk.ask(partial(self._rehearse, choice, action.states), PATIENCE)
            self.answer({"matches": len(found), "messages": [record.as_dict() for record in found[:MOST]]})
            return
        options = {name: True for name in action.choices if wanted.get(name) is True}
        choose = partial(choice.of, action=action)
        job = await self.desk.start(
            Order(verb, choose, self.actor, str(wanted.get("note") or ""), options), QUICK
        )
        self.set_status(HTTPStatus.OK if job.finished else HTTPStatus.ACCEPTED)
        self.answer(job.as_dict())

    def _rehearse(self, choice: Choice, states: frozenset[State]) -> list[MessageRecord]:
        kept = [state for state in (State.NDLV, State.FAIL) if state in states]
        return [record for state in kept for record in choice.among(self.desk.shelf(state).refresh().records)]


class LiftGate(Api):
    """Lifts the fleet gate, ``{"note": "..."}``; 404 if it is not closed."""

    @telling
    async def post(self) -> None:
        gate = await self.desk.lift_gate(self.actor, str(self._wanted().get("note") or ""))
        self.answer(gate.as_dict())


class Proposal(Api):
    """What the pipeline proposes; null if nothing waits."""

    @telling
    async def get(self) -> None:
        waiting = (await self.desk.look()).overview
        if waiting is None:
            raise HTTPError(503, self.desk.trouble)
        self.answer(waiting.proposal and waiting.proposal.as_dict())


class DecideProposal(Api):
    """``{"version": N, "note": "..."}``: 409 if that one does not wait any more."""

    @telling
    async def post(self, verb: str) -> None:
        wanted = self._wanted()
        version, note = version_of(wanted.get("version")), str(wanted.get("note") or "")
        if verb == "apply":
            rules_only = wanted.get("rules_only") is True
            done = await self.desk.apply_proposal(version, rules_only, self.actor, note)
            self.answer(done.as_dict())
        else:
            await self.desk.dismiss_proposal(version, self.actor, note)
            self.answer({"version": version})


class JobState(Api):
    @telling
    async def get(self, id: str) -> None:
        self.answer(self._job(id).as_dict())

    @telling
    async def post(self, id: str) -> None:
        self._job(id).stop()
        self.answer(self._job(id).as_dict())

    def _job(self, id: str) -> Job:
        job = self.desk.jobs.get(id)
        if job is None:
            raise HTTPError(404, "nobody remembers this act")
        return job


def _plain(values: Any) -> Any:
    return json.loads(json.dumps(dict(values), default=str))
