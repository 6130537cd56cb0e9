"""What a person decides about the pipeline's proposal."""

from __future__ import annotations

from functools import partial

from tornado.web import HTTPError, authenticated

from celery_poison.errors import PoisonError, ProposalRefused
from celery_poison.flower.page import Page, status_of

#: What the next page says of it.
DECIDED = {
    "apply": "The proposal is in force: workers obey within a heartbeat.",
    "dismiss": "The proposal was dismissed. Nothing of it is proposed again for 30 days.",
    "refused": "That proposal does not wait any more: somebody decided about it, it is over, or a newer one"
    " took its place. Nothing was done.",
}


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


def version_of(text: object) -> int:
    """Return a proposal's number.

    Raises:
        HTTPError: 400, it is none.
    """
    typed = str(text)
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 16):
        raise HTTPError(400, "version must be the number of a proposal")
    return int(typed)
