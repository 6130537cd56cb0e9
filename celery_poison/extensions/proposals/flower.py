"""Flower's section of the proposal that waits, with its buttons, and the API's answers about it (NEW-7)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tornado.web import HTTPError, authenticated, url

from celery_poison.errors import ProposalRefused
from celery_poison.extensions.proposals.desk import ProposalDesk
from celery_poison.flower.access import Guarded
from celery_poison.flower.api import Api
from celery_poison.flower.extension_parts import FlowerPart
from celery_poison.flower.pages import ActingPage


async def decide(of: Guarded, verb: str) -> Any:
    """Apply or dismiss the pipeline's proposal of the version that was read.

    Raises:
        ProposalRefused: that one does not wait any more.
        HTTPError: 400: the version is no number.
    """
    typed = of.said("version")
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 16):
        raise HTTPError(400, "version must be the number of a proposal")
    desk, number = ProposalDesk(of.application.capp), int(typed)
    how = {"actor": of.actor, "note": of.said("note")}
    if verb == "apply":
        apply = partial(desk.apply, number, rules_only=of.said("rules_only") == "1", **how)
        return (await of.ledger.change(apply))._asdict()
    await of.ledger.change(partial(desk.dismiss, number, **how))
    return {"version": number}


async def proposal(api: Api) -> Any:
    """Return the pipeline's proposal; null if nothing waits."""
    waiting = (await api.overview()).panel("proposal")
    return waiting and waiting.as_dict()


class DecideProposal(ActingPage):
    """Goes back to the list, whose section says what became of the proposal."""

    @authenticated
    async def post(self, verb: str) -> None:
        try:
            await decide(self, verb)
        except ProposalRefused:
            verb = "refused"
        self.redirect(self.reverse_url("poison") + f"?decided={verb}", status=303)


PART = FlowerPart(
    [url(r"/poison/proposal/(apply|dismiss)", DecideProposal, name="poison-proposal")],
    api={"proposal": {"get": proposal}, "proposal/(apply|dismiss)": {"post": decide}},
    sections=[str(Path(__file__).with_name("section.html"))],
)
