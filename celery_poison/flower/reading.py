"""The pages to look at: each asks the desk, words what it hears, and fills a template."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus

from tornado.web import HTTPError, authenticated

from celery_poison.errors import MessageNotFound, PoisonError
from celery_poison.flower import incidents
from celery_poison.flower.actions import ACTIONS
from celery_poison.flower.bodies import bodies_closed, send_body
from celery_poison.flower.listing import TABS, Found, Listing
from celery_poison.flower.message import Dossier, read_dossier
from celery_poison.flower.page import Page, status_of
from celery_poison.flower.proposal import DECIDED
from celery_poison.quarantine.filters import BadFilter
from celery_poison.states import State


class ListPage(Page):
    @authenticated
    async def get(self) -> None:
        listing = Listing.parse(*map(self.asked, ("state", "filter", "offset", "order")))
        await self.desk.look()
        found, error = Found((), 0, False), ""
        try:
            found = await listing.find(self.desk)
        except BadFilter as bad:
            self.set_status(HTTPStatus.BAD_REQUEST)
            error = str(bad)
        except PoisonError as away:
            self.set_status(HTTPStatus.SERVICE_UNAVAILABLE)
            error = str(away)
        if self.desk.snapshot.overview is None:
            self.set_status(HTTPStatus.SERVICE_UNAVAILABLE)
        offered = [action for action in ACTIONS.values() if State.NDLV in action.states]
        if listing.state == "FAIL":
            offered = [action for action in ACTIONS.values() if State.FAIL in action.states]
        elif listing.state != "NDLV":
            offered = []
        self.show(
            "poison-list.html",
            listing=listing,
            found=found,
            error=error,
            tabs=TABS,
            offered=[] if self.closed else offered,
            job=self.desk.jobs.get(self.asked("job")),
            proposed=DECIDED.get(self.asked("proposal"), ""),
            link=self.link,
            link_with=self.link_with,
            Listing=Listing,
        )


class MessagePage(Page):
    @authenticated
    async def get(self, id: str) -> None:
        await self.desk.look()
        dossier: Dossier | None = None
        error = ""
        try:
            dossier = await read_dossier(self.desk, id)
        except MessageNotFound as unknown:
            self.set_status(HTTPStatus.NOT_FOUND)
            error = str(unknown)
        except PoisonError as trouble:
            self.set_status(status_of(trouble))
            error = str(trouble)
        offered = [a for a in ACTIONS.values() if dossier and dossier.record.state in a.states]
        self.show(
            "poison-message.html",
            id=id,
            dossier=dossier,
            error=error,
            offered=[] if self.closed else offered,
            bodies_shown=not bodies_closed(self),
            link_with=self.link_with,
        )


class TaskRedirect(Page):
    """From a task id, which is what Flower's own pages know, to its message."""

    @authenticated
    async def get(self, id: str) -> None:
        await self.desk.look()
        mids = [record.mid for record in self.desk.snapshot.view.records if record.id == id]
        if len(mids) > 1:
            self.redirect(self.link_with(id=id))
        else:
            self.redirect(self.reverse_url("poison-message", mids[0] if mids else id))


class Body(Page):
    """The body as it was received; a browser saves it and never shows it."""

    @authenticated
    async def get(self, mid: str) -> None:
        if bodies_closed(self):
            raise HTTPError(403, "Bodies are shown only where Flower asks who you are")
        try:
            parcel = await self.desk.ask(lambda: self.desk.quarantine.message(mid))
        except PoisonError as trouble:
            raise HTTPError(status_of(trouble), str(trouble)) from None
        send_body(self, parcel.body)


class IncidentsPage(Page):
    @authenticated
    async def get(self) -> None:
        await self.desk.look()
        error, seen = "", None
        span = incidents.span(self.asked("span"))
        try:
            seen = await self.desk.ask(partial(incidents.read, self.desk, span))
        except PoisonError as trouble:
            self.set_status(status_of(trouble))
            error = str(trouble)
        self.show("poison-incidents.html", seen=seen, span=span, spans=incidents.SPANS, error=error)
