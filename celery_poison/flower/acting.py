"""The pages to act with: what would be touched, the act itself, and its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from tornado.web import HTTPError, authenticated

from celery_poison.errors import MessageNotFound, PoisonError
from celery_poison.flower.choice import Choice, NothingChosen
from celery_poison.flower.jobs import Job, Order
from celery_poison.flower.listing import Listing
from celery_poison.flower.page import Page, status_of
from celery_poison.quarantine.filters import BadFilter
from celery_poison.states import State

#: Rows of a preview; the rest is counted.
SAMPLE = 10
#: Seconds for which a page waits for an act to end, before it shows its progress instead.
QUICK = 1.5


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
