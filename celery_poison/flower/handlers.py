"""The pages: each asks the desk, words what it hears, and fills a template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from flower.views import BaseHandler
from tornado.web import HTTPError, authenticated

from celery_poison.errors import LedgerUnavailable, MessageNotFound, PoisonError, ProposalRefused
from celery_poison.flower import incidents, words
from celery_poison.flower.actions import ACTIONS
from celery_poison.flower.base import Guarded
from celery_poison.flower.choice import Choice, NothingChosen
from celery_poison.flower.jobs import Job, Order
from celery_poison.flower.listing import TABS, Found, Listing
from celery_poison.flower.message import Dossier, read_dossier
from celery_poison.quarantine.filters import BadFilter
from celery_poison.states import State

#: Rows of a preview; the rest is counted.
SAMPLE = 10
#: Seconds for which a page waits for an act to end, before it shows its progress instead.
QUICK = 1.5


class Page(Guarded, BaseHandler):
    """A page in Flower's look."""

    def prepare(self) -> None:
        if self.request.method == "POST":
            self.admit()

    def show(self, template: str, **values: Any) -> None:
        """Fill a template with what every page of ours knows."""
        self.render(
            template,
            **words.NAMES,
            actions=ACTIONS,
            closed=self.closed,
            trouble=self.desk.trouble,
            snapshot=self.desk.snapshot,
            **values,
        )

    def asked(self, name: str) -> str:
        """Return an argument of the address as it was sent; Flower's own method escapes it."""
        return self.get_query_argument(name, "")

    def link(self, listing: Listing) -> str:
        return self.reverse_url("poison") + (f"?{listing.query}" if listing.query else "")

    def link_with(self, **conditions: str) -> str:
        """Return the address of what is in quarantine and has these values."""
        return self.link(Listing.of(**conditions))


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
            proposed=_DECIDED.get(self.asked("proposal"), ""),
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
            parcel = await self.desk.ask(lambda: self.desk.quarantine.parcel(mid))
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


@dataclass(frozen=True, slots=True)
class Asked:
    """What a form says about an act."""

    choice: Choice
    listing: Listing

    @classmethod
    def of(cls, page: Page) -> Asked:
        field = partial(page.get_body_argument, default="")
        until = field("until")
        only = field("only")
        choice = Choice(
            ids=(only,) if only else tuple(page.get_body_arguments("ids")),
            everything=field("everything") == "1" and not only,
            text=field("filter"),
            until=float(until) if until.replace(".", "", 1).isdecimal() else None,
        )
        if choice.everything:
            choice = Choice((), True, choice.text, choice.until)
        listing = Listing.parse(field("state"), field("filter"), field("offset"), field("order"))
        return cls(choice, listing)


class PreviewPage(Page):
    """What an act would touch, before it does."""

    @authenticated
    async def post(self, verb: str) -> None:
        action, asked, error = self.action(verb), Asked.of(self), ""
        records: Sequence[Any] = ()
        try:
            asked.choice.check()
            if State.NDLV in action.states:
                view = (await self.desk.look_at_all()).view
            else:
                shelf = self.desk.shelf(State.FAIL)
                view = await self.desk.ask(lambda: shelf.refresh())
            records = await self.desk.think(lambda: asked.choice.among(view.records))
            if not records:
                error = "None of these messages is there any more"
        except (NothingChosen, BadFilter) as wrong:
            self.set_status(HTTPStatus.BAD_REQUEST)
            error = str(wrong)
        except PoisonError as trouble:
            self.set_status(status_of(trouble))
            error = str(trouble)
        newest = max((record.quarantined_at or 0.0 for record in records), default=0.0)
        self.show(
            "poison-preview.html",
            action=action,
            asked=asked,
            records=records[:SAMPLE],
            count=len(records),
            until=newest,
            error=error,
            back=self.link(asked.listing),
        )


class Act(Page):
    @authenticated
    async def post(self, verb: str) -> None:
        action, asked = self.action(verb), Asked.of(self)
        try:
            asked.choice.check()
        except PoisonError as wrong:
            raise HTTPError(400, str(wrong)) from None
        options = {name: self.get_body_argument(name, "") == "1" for name in action.choices}
        order = Order(
            verb,
            partial(asked.choice.of, action=action),
            self.actor,
            self.get_body_argument("note", ""),
            {name: True for name, on in options.items() if on},
        )
        job = await self.desk.start(order, QUICK)
        if job.state == "done" and not job.refused:
            back = self.link(asked.listing)
            self.redirect(f"{back}{'&' if '?' in back else '?'}job={job.id}", status=303)
        else:
            self.redirect(self.reverse_url("poison-job", job.id), status=303)


class LiftGate(Page):
    @authenticated
    async def post(self) -> None:
        try:
            await self.desk.lift_gate(self.actor, self.get_body_argument("note", ""))
        except MessageNotFound:
            pass  # somebody was quicker, or its time was over
        except PoisonError as trouble:
            raise HTTPError(status_of(trouble), str(trouble)) from None
        self.redirect(self.reverse_url("poison"), status=303)


class DecideProposal(Page):
    """Applies the pipeline's proposal, or dismisses it: the one that was read, or none."""

    @authenticated
    async def post(self, verb: str) -> None:
        field = partial(self.get_body_argument, default="")
        version, note, done = version_of(field("version")), field("note"), verb
        try:
            if verb == "apply":
                await self.desk.apply_proposal(version, field("rules_only") == "1", self.actor, note)
            else:
                await self.desk.dismiss_proposal(version, self.actor, note)
        except ProposalRefused:
            done = "refused"
        except PoisonError as trouble:
            raise HTTPError(status_of(trouble), str(trouble)) from None
        self.redirect(f"{self.reverse_url('poison')}?proposal={done}", status=303)


#: What the next page says of it.
_DECIDED = {
    "apply": "The proposal is in force: workers obey within a heartbeat.",
    "dismiss": "The proposal was dismissed. Nothing of it is proposed again for 30 days.",
    "refused": "That proposal does not wait any more: somebody decided about it, it is over, or a newer one"
    " took its place. Nothing was done.",
}


def version_of(text: object) -> int:
    """Return a proposal's number.

    Raises:
        HTTPError: 400, it is none.
    """
    typed = str(text)
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 16):
        raise HTTPError(400, "version must be the number of a proposal")
    return int(typed)


class JobPage(Page):
    """The progress of an act, and what was refused."""

    @authenticated
    async def get(self, id: str) -> None:
        self.show("poison-job.html", job=self._job(id))

    @authenticated
    async def post(self, id: str) -> None:
        self._job(id).stop()
        self.redirect(self.reverse_url("poison-job", id), status=303)

    def _job(self, id: str) -> Job:
        job = self.desk.jobs.get(id)
        if job is None:
            raise HTTPError(404, "Nobody remembers this act: Flower was started again since, see the journal")
        return job


def bodies_closed(handler: Guarded) -> bool:
    """Bodies may hold what nobody but the task should know: they need a Flower that asks who somebody is."""
    options = handler.application.options
    return not (options.basic_auth or options.auth) and bool(handler.closed)


def send_body(handler: Any, body: bytes) -> None:
    handler.set_header("Content-Type", "application/octet-stream")
    handler.set_header("Content-Disposition", 'attachment; filename="body.bin"')
    handler.finish(body)


def status_of(trouble: PoisonError) -> int:
    """Return the HTTP status of one of our errors."""
    if isinstance(trouble, LedgerUnavailable):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(trouble, MessageNotFound):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST if isinstance(trouble, BadFilter) else HTTPStatus.CONFLICT
