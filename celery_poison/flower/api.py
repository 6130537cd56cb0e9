"""The JSON API, under Flower's ``/api/`` and its rule: 401 where visitors need no name, unless opened.

One function answers one question; :class:`Api` lets people in, reads and writes for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any

from flower.api import BaseApiHandler
from tornado.web import HTTPError, authenticated

from celery_poison.desk.overview import Overview
from celery_poison.desk.search import By, Filter
from celery_poison.flower import act_pages, changing
from celery_poison.flower.access import CLIENT_HEADER, Guarded, sentence_of
from celery_poison.flower.async_ledger import SEARCH_TIMEOUT
from celery_poison.flower.choosing import ACTIONS, TABS, Choice, Listing
from celery_poison.flower.extension_parts import union
from celery_poison.flower.message import MESSAGE_TIMEOUT
from celery_poison.flower.pages import find
from celery_poison.keep.body import decoded

#: Messages in one answer, unless a smaller limit is asked for.
ANSWERED = 1000
#: Seconds for which an answer waits for an act to end, before it says where to ask.
QUICK = 2.0


class Api(Guarded, BaseApiHandler):
    """A route of the API; errors are JSON objects with an ``error``."""

    def initialize(self, get: Question | None = None, post: Question | None = None) -> None:
        self._questions = {"GET": get, "POST": post}

    def prepare(self) -> None:
        super().prepare()
        if self.request.method == "POST":
            self.admit(token_needed=not self.request.headers.get(CLIENT_HEADER))

    @authenticated
    async def get(self, *words: str) -> None:
        question = self._questions[str(self.request.method)]
        if question is None:
            raise HTTPError(405)
        value = await question(self, *words)
        if not self._finished:
            self.answer(value)

    post = get

    def answer(self, value: Any) -> None:
        self.set_header("Content-Type", "application/json; charset=UTF-8")
        # ASCII: whatever was stored, lone surrogates too, arrives as it was.
        self.finish(json.dumps(value, default=str))

    def write_error(self, status_code: int, **more: Any) -> None:
        sentence = sentence_of((more.get("exc_info") or (None, None))[1])
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

    @cached_property
    def wanted(self) -> dict[str, Any]:
        try:
            wanted = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            raise HTTPError(400, "the request's body is no JSON") from None
        if not isinstance(wanted, dict) or not isinstance(wanted.get("ids") or [], list):
            raise HTTPError(400, 'write {"ids": [...]}, {"filter": "task=..."} or {"all": true}')
        return wanted

    def said(self, name: str) -> str:
        value = self.wanted.get(name)
        return "1" if value is True else str(value or "")


#: Answers one question, which the words in the address complete.
Question = Callable[..., Awaitable[Any]]


async def status(api: Api) -> Any:
    overview = await api.overview()
    snapshot = api.ledger.snapshot
    own = {"on_trial": snapshot.trials, "oldest": snapshot.oldest}
    return {**overview.as_dict(), **own, "age": round(snapshot.age, 3), "trouble": api.ledger.trouble}


async def groups(api: Api) -> Any:
    """Return the object of ``celery poison groups --json``, by task and cause; ``?by=fingerprint``: finer."""
    by = api.get_query_argument("by", By.CAUSE)
    if by not in [*By]:
        raise HTTPError(400, f"by must be one of {', '.join(By)}")
    finder, limit = api.ledger.quarantine.finder, api.number("limit", 0)
    groups, total = await api.ledger.ask(lambda: finder.groups(by=By(by), limit=limit), MESSAGE_TIMEOUT)
    api.set_header("X-Total", str(total))
    return [group.as_dict() for group in groups]


async def messages(api: Api) -> Any:
    await api.ledger.look()
    ask = partial(api.get_query_argument, default="")
    if ask("state") not in ("", *TABS):
        raise HTTPError(400, f"state must be one of {', '.join(TABS)}")
    listing = Listing.parse(ask("state"), ask("filter"), str(api.number("offset", 0)), ask("order"))
    page = await find(api.ledger, listing, rows=min(ANSWERED, api.number("limit", ANSWERED)))
    api.set_header("X-Total", "" if page.total is None else str(page.total))
    return [record.as_dict() for record in page.rows]


async def message(api: Api, id: str) -> Any:
    return (await api.ledger.ask(lambda: api.ledger.quarantine.detail(id), MESSAGE_TIMEOUT)).as_dict()


async def body(api: Api, mid: str) -> Any:
    """Return the body: as received, or with ``?decoded=1`` as JSON."""
    stored = await api.ledger.ask(lambda: api.ledger.quarantine.message(mid))
    if api.get_query_argument("decoded", "") == "1":
        return {"body": decoded(stored)}
    api.send_body(stored.body)


async def incidents(api: Api) -> Any:
    limit = min(ANSWERED, api.number("limit", 100))
    found = await api.ledger.ask(lambda: api.ledger.quarantine.queries.incidents(limit))
    return [incident.as_dict() for incident in found]


async def actions(api: Api) -> Any:
    actions = [asdict(each) | {"states": sorted(each.states)} for each in ACTIONS.values()]
    return {"actions": actions, "closed": api.why_read_only}


async def act(api: Api, verb: str) -> Any:
    """Act on ``{"ids": [...]}``, ``{"filter": "..."}`` or ``{"all": true}``; with ``note``, ``dry_run``."""
    act_pages.action(verb)
    wanted, text = api.wanted, api.said("filter")
    if text:
        Filter.parse(text)  # words to search for are for people, who see what they mids
    everything = bool(text) or wanted.get("all") is True
    choice = Choice(tuple(map(str, wanted.get("ids") or ())), everything, text)
    choice.check()
    if wanted.get("dry_run"):
        mids = await api.ledger.ask(lambda: choice.find(api.ledger.quarantine, ANSWERED), SEARCH_TIMEOUT)
        return {"matches": mids.total, "messages": [record.as_dict() for record in mids.rows]}
    job = await act_pages.begin(api, verb, choice, QUICK)
    api.set_status(HTTPStatus.OK if job.finished else HTTPStatus.ACCEPTED)
    return job.as_dict()


async def job_state(api: Api, id: str) -> Any:
    return act_pages.job(api, id).as_dict()


async def stop_job(api: Api, id: str) -> Any:
    act_pages.job(api, id).stop()
    return act_pages.job(api, id).as_dict()


async def held_back(api: Api) -> Any:
    return [each._asdict() for each in act_pages.held_back(await api.overview())]


async def blocks(api: Api) -> Any:
    return [rule.as_dict() for rule in await changing.blocked(api)]


#: Address below ``/api/poison/`` -> what answers there, by method.
ROUTES: dict[str, dict[str, Question]] = {
    r"status": {"get": status},
    r"groups": {"get": groups},
    r"messages": {"get": messages},
    r"message/(.+)": {"get": message},
    r"body/(.+)": {"get": body},
    r"incidents": {"get": incidents},
    r"actions": {"get": actions},
    r"act/(\w+)": {"post": act},
    r"job/(\w+)": {"get": job_state, "post": stop_job},
    r"gate/lift": {"post": act_pages.lift_gate},
    r"blocks": {"get": blocks},
    r"block": {"post": changing.block},
    r"unblock": {"post": changing.unblock},
}
#: The same where an extension holds something back.
HOLDING: dict[str, dict[str, Question]] = {
    r"held": {"get": held_back},
    r"held/resume": {"post": act_pages.let_go},
    r"held/begin": {"post": act_pages.hold_back},
}


def routes() -> dict[str, dict[str, Question]]:
    """Return the question behind each address, those of extensions included."""
    return {**ROUTES, **(HOLDING if act_pages.hold_kinds() else {}), **union(lambda part: part.api)}
