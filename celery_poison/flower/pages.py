"""The pages: each asks the ledger, words what it hears, and fills a template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from flower.views import BaseHandler
from tornado.web import HTTPError, authenticated

from celery_poison.desk.finder import PAGE_COUNTS_TO, PAGE_LOOKS_AT, Found
from celery_poison.desk.lookup import AmbiguousId
from celery_poison.desk.read_model import LISTED, NEWEST
from celery_poison.desk.search import Filter
from celery_poison.errors import LedgerUnavailable, MessageNotFound, PoisonError
from celery_poison.flower import act_pages, changing, death_picture, incident_page, timeline_picture, words
from celery_poison.flower.access import Guarded, sentence_of, status_of
from celery_poison.flower.async_ledger import ANSWER_TIMEOUT, SEARCH_TIMEOUT, AsyncLedger
from celery_poison.flower.choosing import ACTIONS, TABS, Choice, Listing, MessageAct
from celery_poison.flower.extension_parts import all_parts, union
from celery_poison.flower.message import MessageStory, read_story
from celery_poison.rules.blocks import RuleKind
from celery_poison.states import State

#: Rows of a list, and of a preview; the rest is counted.
ROWS, SAMPLE = NEWEST, 10
#: Seconds for which a page waits for an act to end, before it shows its progress instead.
QUICK = 1.5


class Page(Guarded, BaseHandler):
    """A page in Flower's look."""

    def prepare(self) -> None:
        if self.request.method == "POST":
            self.admit()

    def write_error(self, status_code: int, **more: Any) -> None:
        """Say on a page of ours what is wrong; a visitor who has not logged in gets Flower's own answer."""
        sentence = sentence_of((more.get("exc_info") or (None, None))[1])
        if getattr(self, "_current_user", None) and sentence:
            self.show("poison-message.html", story=None, error=sentence, offered=[], bodies_shown=False)
        else:
            super().write_error(status_code, **more)

    def show(self, template: str, **values: Any) -> None:
        """Fill a template with what every page of ours knows."""
        names = {
            **words.NAMES,
            "actions": ACTIONS,
            "why_read_only": self.why_read_only,
            "trouble": self.ledger.trouble,
            "snapshot": self.ledger.snapshot,
            "link_with": self.link_with,
        }
        self.render(template, names=names, **names, **values)

    def fail_with(self, trouble: PoisonError) -> str:
        """Set the status of one of our errors, and return its sentence."""
        self.set_status(status_of(trouble))
        return str(trouble)

    def offers(self, state: str) -> list[MessageAct]:
        """Return the acts offered here for a message in this state."""
        return [] if self.why_read_only else [each for each in ACTIONS.values() if state in each.states]

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
        return await ledger.ask(asked, SEARCH_TIMEOUT if where else ANSWER_TIMEOUT)
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
            found = await find(self.ledger, listing, ROWS, PAGE_LOOKS_AT)
        except PoisonError as trouble:
            error = self.fail_with(trouble)
        seen = self.ledger.snapshot.overview
        if seen is None:
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
            decided=self.asked("decided"),
            sections=[section for part in all_parts() for section in part.sections],
            link=self.link,
            Listing=Listing,
            held=act_pages.held_back(seen) if seen else [],
            kinds=act_pages.hold_kinds(),
            deaths=death_picture.draw(self.ledger.snapshot.deaths, seen.at) if seen else None,
            listed=LISTED,
        )


class MessagePage(Page):
    @authenticated
    async def get(self, id: str) -> None:
        await self.ledger.look()
        story: MessageStory | None = None
        error = ""
        try:
            story = await read_story(self.ledger, id, names_only=self.bodies_closed)
        except PoisonError as trouble:
            error = self.fail_with(trouble)
        self.show(
            "poison-message.html",
            id=id,
            story=story,
            error=error,
            offered=self.offers(story.record.state if story else ""),
            bodies_shown=not self.bodies_closed,
            downloads=union(lambda part: part.downloads),
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
        stored = await self.ledger.ask(lambda: self.ledger.quarantine.message(mid))
        self.send_body(stored.body)


class IncidentsPage(Page):
    @authenticated
    async def get(self) -> None:
        await self.ledger.look()
        error, seen = "", None
        try:
            seen = await self.ledger.ask(partial(incident_page.read, self.ledger, self.asked("span")))
        except PoisonError as trouble:
            error = self.fail_with(trouble)
        self.show("poison-incidents.html", seen=seen, spans=incident_page.SPANS, error=error)


class IncidentPage(Page):
    """One death of a worker, as a picture."""

    @authenticated
    async def get(self, id: str) -> None:
        await self.ledger.look()
        error, seen = "", None
        try:
            seen = await self.ledger.ask(partial(timeline_picture.read, self.ledger, id))
        except PoisonError as trouble:
            error = self.fail_with(trouble)
        self.show("poison-incident.html", seen=seen, kinds=timeline_picture.KINDS, error=error)


# --- acting ------------------------------------------------------------------------------------


class ActingPage(Page):
    """A page that a form asks for."""

    def said(self, name: str) -> str:
        return self.get_body_argument(name, "")

    def choice(self) -> Choice:
        until, only = self.said("until"), self.said("only")
        everything = self.said("everything") == "1" and not only
        return Choice(
            ids=() if everything else (only,) if only else tuple(self.get_body_arguments("ids")),
            everything=everything,
            text=self.said("filter"),
            until=float(until) if until.replace(".", "", 1).isdecimal() else None,
        )

    def listing(self) -> Listing:
        return Listing.parse(*map(self.said, ("state", "filter", "offset", "order")))


class PreviewPage(ActingPage):
    """A preview of the messages that an act would touch."""

    @authenticated
    async def post(self, verb: str) -> None:
        action, choice, listing = act_pages.action(verb), self.choice(), self.listing()
        found, seen, error = Found(), self.ledger.snapshot.overview, ""
        try:
            choice.check()
            look = partial(choice.find, self.ledger.quarantine, SAMPLE, PAGE_COUNTS_TO)
            found = await self.ledger.ask(look, SEARCH_TIMEOUT)
            error = "" if found.rows or found.more else "None of these messages is there any more"
        except PoisonError as trouble:
            error = self.fail_with(trouble)
        until = max((each.quarantined_at or 0.0 for each in found.rows), default=seen.at if seen else 0.0)
        self.show(
            "poison-preview.html",
            action=action,
            choice=choice,
            listing=listing,
            found=found,
            count=found.total or 0,
            until=until,
            error=error,
            back=self.link(listing),
        )


class EditPage(ActingPage):
    """The call that a message makes of its task, to be changed."""

    @authenticated
    async def get(self, id: str) -> None:
        if self.why_read_only:
            raise HTTPError(403, self.why_read_only)
        found = await changing.editable(self, id)
        self.show("poison-edit.html", found=found, error="", note="", switched=())

    @authenticated
    async def post(self, id: str) -> None:
        found = await changing.editable(self, id)
        try:
            edited = await changing.edit(self, found.record.mid)
        except PoisonError as trouble:
            typed: dict[str, Any] = {name: self.said(name) for name in ("args", "kwargs", "queue")}
            again: dict[str, Any] = {"found": found._replace(**typed), "note": self.said("note")}
            switched = [name for name in ("hold", "force", "yes_run_again") if self.said(name) == "1"]
            self.show("poison-edit.html", **again, switched=switched, error=self.fail_with(trouble))
        else:
            shown = edited.copy if self.said("hold") == "1" else found.record.mid
            self.redirect(self.reverse_url("poison-message", shown), status=303)


class BlockPage(ActingPage):
    """The blocks, and a form for more, for the message ``?id=`` or the task ``?task=``."""

    @authenticated
    async def get(self) -> None:
        await self.ledger.look()
        typed = {"kind": "task" if self.asked("task") else "fingerprint", "task": self.asked("task")}
        error = ""
        try:
            if id := self.asked("id"):
                fingerprint_of = partial(self.ledger.quarantine.fingerprint_of, id)
                typed["fingerprint"], typed["task"] = await self.ledger.ask(fingerprint_of, ANSWER_TIMEOUT)
        except PoisonError as trouble:
            error = self.fail_with(trouble)
        await self.fill(typed, error)

    @authenticated
    async def post(self) -> None:
        try:
            await changing.block(self)
        except PoisonError as trouble:
            typed = {name: self.get_body_argument(name) for name in self.request.body_arguments}
            await self.fill(typed, self.fail_with(trouble))
        else:
            self.redirect(self.reverse_url("poison-block"), status=303)

    def said(self, name: str) -> str:
        """As the acts ask for it: the form has a field for each kind."""
        kind = super().said("kind")
        if name == "name":
            return super().said(kind)
        if name == "task":
            return super().said("task" if kind in [*RuleKind] else "of")
        return super().said(name)

    async def fill(self, typed: dict[str, str], error: str) -> None:
        try:
            rules = await changing.blocked(self)
        except PoisonError as trouble:
            rules, error = [], error or self.fail_with(trouble)
        fields = [template for _, template in union(lambda part: part.blocks).values()]
        self.show("poison-block.html", typed=typed, error=error, rules=rules, fields=fields)


class Unblock(ActingPage):
    """Ends a rule, and goes back to those that are left."""

    @authenticated
    async def post(self) -> None:
        with suppress(MessageNotFound):  # another person has unblocked it, or it has expired
            await changing.unblock(self)
        self.redirect(self.reverse_url("poison-block"), status=303)


class Act(ActingPage):
    @authenticated
    async def post(self, verb: str) -> None:
        job = await act_pages.begin(self, verb, self.choice(), QUICK)
        if job.state == "done" and not job.refused:
            back = self.link(self.listing())
            self.redirect(f"{back}{'&' if '?' in back else '?'}job={job.id}", status=303)
        else:
            self.redirect(self.reverse_url("poison-job", job.id), status=303)


class JobPage(Page):
    """The progress of an act, and what was refused."""

    @authenticated
    async def get(self, id: str) -> None:
        self.show("poison-job.html", job=act_pages.job(self, id))

    @authenticated
    async def post(self, id: str) -> None:
        act_pages.job(self, id).stop()
        self.redirect(self.reverse_url("poison-job", id), status=303)


class Decide(ActingPage):
    """Does what is no act on messages, and goes back to the list."""

    def initialize(self, act: Callable[..., Awaitable[Any]]) -> None:
        self._act = act

    @authenticated
    async def post(self) -> None:
        with suppress(MessageNotFound):  # another person has decided, or it has expired
            await self._act(self)
        self.redirect(self.reverse_url("poison"), status=303)
