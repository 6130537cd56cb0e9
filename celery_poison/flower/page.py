"""What every page shares: Flower's look, and how links and errors are told."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from flower.views import BaseHandler

from celery_poison.errors import LedgerUnavailable, MessageNotFound, PoisonError
from celery_poison.flower import words
from celery_poison.flower.actions import ACTIONS
from celery_poison.flower.base import Guarded
from celery_poison.flower.listing import Listing
from celery_poison.quarantine.filters import BadFilter


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


def status_of(trouble: PoisonError) -> int:
    """Return the HTTP status of one of our errors."""
    if isinstance(trouble, LedgerUnavailable):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(trouble, MessageNotFound):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.BAD_REQUEST if isinstance(trouble, BadFilter) else HTTPStatus.CONFLICT
