"""The pages: each asks the ledger, words what it hears, and fills a template."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

from flower.views import BaseHandler
from tornado.web import HTTPError, authenticated

from celery_poison.errors import LedgerUnavailable, MessageNotFound, PoisonError, ProposalRefused
from celery_poison.flower import incidents, words
from celery_poison.flower.access import Guarded, status_of
from celery_poison.flower.choosing import ACTIONS, TABS, Action, Choice, Listing, offered
from celery_poison.flower.held import held
from celery_poison.flower.ledger import PATIENCE, SEARCHING, AsyncLedger
from celery_poison.flower.message import MessageStory, read_story
from celery_poison.quarantine.finding import COUNTED, LOOKED, Found
from celery_poison.quarantine.read_model import NEWEST
from celery_poison.quarantine.search import AmbiguousId, Filter
from celery_poison.states import State

#: Rows of a list, and of a preview; the rest is counted.
ROWS, SAMPLE = NEWEST, 10
#: Seconds for which a page waits for an act to end, before it shows its progress instead.
QUICK = 1.5
#: What the next page says of a decision about a proposal.
DECIDED = {
    "apply": "The proposal is in force: workers obey within a heartbeat.",
    "dismiss": "The proposal was dismissed. Nothing of it is proposed again for 30 days.",
    "refused": "That proposal does not wait any more: somebody decided about it, it is over, or a newer one"
    " took its place. Nothing was done.",
}


class Page(Guarded, BaseHandler):
    """A page in Flower's look."""

    def prepare(self) -> None:
        if self.request.method == "POST":
            self.admit()

    def write_error(self, status_code: int, **more: Any) -> None:
        """Say on a page of ours what is wrong; whoever has not logged in gets Flower's own answer."""
        error = (more.get("exc_info") or (None, None))[1]
        if getattr(self, "_current_user", None) and isinstance(error, HTTPError) and error.log_message:
            sentence = error.log_message
            self.show("poison-message.html", story=None, error=sentence, offered=[], bodies_shown=False)
        else:
            super().write_error(status_code, **more)

    def show(self, template: str, **values: Any) -> None:
        """Fill a template with what every page of ours knows."""
        self.render(
            template,
            **words.NAMES,
            actions=ACTIONS,
            closed=self.closed,
            trouble=self.ledger.trouble,
            snapshot=self.ledger.snapshot,
            link_with=self.link_with,
            **values,
        )

    def failed(self, trouble: PoisonError) -> str:
        """Set the status of one of our errors, and return its sentence."""
        self.set_status(status_of(trouble))
        return str(trouble)

    def offers(self, state: str) -> list[Action]:
        return [] if self.closed else offered(state)

    def asked(self, name: str) -> str:
        """Return an argument of the address as it was sent; Flower's own method escapes it."""
        return self.get_query_argument(name, "")

    def link(self, listing: Listing) -> str:
        return self.reverse_url("poison") + (f"?{listing.query}" if listing.query else "")

    def link_with(self, state: str = "NDLV", /, **conditions: str) -> str:
        """Return the address of what is in that state and has these values."""
        return self.link(Listing.of(state, **conditions))


async def find(ledger: AsyncLedger, listing: Listing, rows: int, most: int | None = None) -> Found:
    """Return one page of a list; the newest in quarantine even while Redis is away.

    Args:
        most: messages that are looked at where each has to be; None: as many as it takes.

    Raises:
        BadFilter: the filter is none.
        LedgerUnavailable: Redis does not answer.
    """
    where, seen = listing.where, ledger.snapshot
    if seen.overview and rows <= NEWEST and listing == Listing():
        total = seen.overview.quarantined
        return Found(seen.newest[:rows], total, total > rows)
    if listing.state in (State.NDLV, State.FAIL):
        page = partial(ledger.quarantine.finder.page, where or Filter(), State(listing.state))
        asked = partial(page, rows=rows, offset=listing.offset, oldest_first=listing.oldest_first)
        asked = partial(asked, begin=listing.begin, most=most)
        return await ledger.ask(asked, SEARCHING if where else PATIENCE)
    what: Any = {"candidates": True} if listing.state == "candidates" else {"state": listing.state}
    found = await ledger.ask(
        lambda: ledger.quarantine.list(**what, where=where, limit=rows + 1, offset=listing.offset)
    )
    return Found(found[:rows], None, len(found) > rows)


class ListPage(Page):
    @authenticated
    async def get(self) -> None:
        listing = Listing.parse(*map(self.asked, ("state", "filter", "offset", "order", "begin")))
        await self.ledger.look()
        found, error = Found(), ""
        try:
            found = await find(self.ledger, listing, ROWS, LOOKED)
        except PoisonError as trouble:
            error = self.failed(trouble)
        if self.ledger.snapshot.overview is None:
            self.set_status(HTTPStatus.SERVICE_UNAVAILABLE)
        job, died_again = self.ledger.jobs.get(self.asked("job")), 0
        if job is not None:
            with suppress(LedgerUnavailable):
                died_again = await self.ledger.ask(partial(job.died_again, self.ledger.quarantine))
        self.show(
            "poison-list.html",
            listing=listing,
            found=found,
            error=error,
            tabs=TABS,
            offered=self.offers(listing.state),
            job=job,
            died_again=died_again,
            rows=ROWS,
            proposed=DECIDED.get(self.asked("proposal"), ""),
            link=self.link,
            Listing=Listing,
            held=held(self.ledger.snapshot.overview) if self.ledger.snapshot.overview else [],
        )


class MessagePage(Page):
    @authenticated
    async def get(self, id: str) -> None:
        await self.ledger.look()
        story: MessageStory | None = None
        error = ""
        try:
            story = await read_story(self.ledger, id)
        except PoisonError as trouble:
            error = self.failed(trouble)
        self.show(
            "poison-message.html",
            id=id,
            story=story,
            error=error,
            offered=self.offers(story.record.state if story else ""),
            bodies_shown=not self.bodies_closed,
        )


class TaskRedirect(Page):
    """From a task id, which is what Flower's own pages know, to its message."""

    @authenticated
    async def get(self, id: str) -> None:
        await self.ledger.look()
        try:
            record = await self.ledger.ask(lambda: self.ledger.quarantine.get(id))
        except (AmbiguousId, LedgerUnavailable):  # among very many: the list looks bit by bit
            self.redirect(self.link_with(id=id))
        except PoisonError:  # the message's page says what
            self.redirect(self.reverse_url("poison-message", id))
        else:
            self.redirect(self.reverse_url("poison-message", record.mid))


class Body(Page):
    """The body as it was received."""

    @authenticated
    async def get(self, mid: str) -> None:
        if self.bodies_closed:
            raise HTTPError(403, "Bodies are shown only where Flower asks who you are")
        try:
            stored = await self.ledger.ask(lambda: self.ledger.quarantine.message(mid))
        except PoisonError as trouble:
            raise HTTPError(status_of(trouble), str(trouble)) from None
        self.send_body(stored.body)


class IncidentsPage(Page):
    @authenticated
    async def get(self) -> None:
        await self.ledger.look()
        error, seen = "", None
        span = incidents.span(self.asked("span"))
        try:
            seen = await self.ledger.ask(partial(incidents.read, self.ledger, span))
        except PoisonError as trouble:
            error = self.failed(trouble)
        self.show("poison-incidents.html", seen=seen, span=span, spans=incidents.SPANS, error=error)


# --- acting ------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a form says about an act."""

    choice: Choice
    listing: Listing

    @classmethod
    def of(cls, page: Page) -> Asked:
        field = partial(page.get_body_argument, default="")
        until, only = field("until"), field("only")
        everything = field("everything") == "1" and not only
        choice = Choice(
            ids=() if everything else (only,) if only else tuple(page.get_body_arguments("ids")),
            everything=everything,
            text=field("filter"),
            until=float(until) if until.replace(".", "", 1).isdecimal() else None,
        )
        return cls(choice, Listing.parse(*map(field, ("state", "filter", "offset", "order"))))


class PreviewPage(Page):
    """What an act would touch, before it does."""

    @authenticated
    async def post(self, verb: str) -> None:
        action, asked, error = self.action(verb), Asked.of(self), ""
        found, seen = Found(), self.ledger.snapshot.overview
        try:
            asked.choice.check()
            found = await self.ledger.ask(
                lambda: asked.choice.find(self.ledger.quarantine, SAMPLE, COUNTED), SEARCHING
            )
            error = "" if found.rows or found.more else "None of these messages is there any more"
        except PoisonError as trouble:
            error = self.failed(trouble)
        self.show(
            "poison-preview.html",
            action=action,
            asked=asked,
            records=found.rows,
            count=found.total or 0,
            more=found.more,
            looked=found.looked,
            until=max(
                (record.quarantined_at or 0.0 for record in found.rows), default=seen.at if seen else 0.0
            ),
            error=error,
            back=self.link(asked.listing),
        )


class Act(Page):
    @authenticated
    async def post(self, verb: str) -> None:
        choice, listing = Asked.of(self)
        try:
            job = await self.begin(verb, choice, partial(self.get_body_argument, default=""), QUICK)
        except PoisonError as wrong:
            raise HTTPError(400, str(wrong)) from None
        if job.state == "done" and not job.refused:
            back = self.link(listing)
            self.redirect(f"{back}{'&' if '?' in back else '?'}job={job.id}", status=303)
        else:
            self.redirect(self.reverse_url("poison-job", job.id), status=303)


class JobPage(Page):
    """The progress of an act, and what was refused."""

    @authenticated
    async def get(self, id: str) -> None:
        self.show("poison-job.html", job=self.job(id))

    @authenticated
    async def post(self, id: str) -> None:
        self.job(id).stop()
        self.redirect(self.reverse_url("poison-job", id), status=303)


class LiftGate(Page):
    @authenticated
    async def post(self) -> None:
        try:
            await self.lift_gate(self.get_body_argument("note", ""))
        except MessageNotFound:
            pass  # somebody was quicker, or its time was over
        except PoisonError as trouble:
            raise HTTPError(status_of(trouble), str(trouble)) from None
        self.redirect(self.reverse_url("poison"), status=303)


class LetGo(Page):
    """Ends a pause, a suspension or a blockade."""

    @authenticated
    async def post(self) -> None:
        field = partial(self.get_body_argument, default="")
        try:
            await self.let_go(field("kind"), field("name"), field("of"), field("note"))
        except MessageNotFound:
            pass  # somebody was quicker, or its time was over
        except PoisonError as trouble:
            raise HTTPError(status_of(trouble), str(trouble)) from None
        self.redirect(self.reverse_url("poison"), status=303)


class DecideProposal(Page):
    """Applies the pipeline's proposal, or dismisses it: the one that was read, or none."""

    @authenticated
    async def post(self, verb: str) -> None:
        field, done = partial(self.get_body_argument, default=""), verb
        try:
            await self.decide(verb, field("version"), field("note"), rules_only=field("rules_only") == "1")
        except ProposalRefused:
            done = "refused"
        except PoisonError as trouble:
            raise HTTPError(status_of(trouble), str(trouble)) from None
        self.redirect(f"{self.reverse_url('poison')}?proposal={done}", status=303)
