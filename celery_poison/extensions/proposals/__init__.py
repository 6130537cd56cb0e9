"""Proposals (NEW-7): the pipeline proposes rules and options of policies; a person applies or dismisses them.

``proposal`` is what waits, ``proposals`` keeps it in the ledger, ``desk`` decides for an app. It is made by
``pipeline.publish``; ``flower`` has the buttons.
"""

from __future__ import annotations

from collections.abc import Iterable

from celery_poison.basics.parts import Panel
from celery_poison.basics.text import count_of, when
from celery_poison.extension import Extension
from celery_poison.extensions.proposals.proposals import Proposals
from celery_poison.ledger import Ledger


class ProposalsExtension(Extension):
    """Shows what waits for a person."""

    def panel(self, ledger: Ledger) -> Iterable[Panel]:
        waiting = Proposals(ledger).waiting()
        if waiting is None:
            yield Panel("proposal")
            return
        options = f" and {count_of(len(waiting.policy), 'option')}" if waiting.policy else ""
        what = f"{count_of(len(waiting.rules), 'rule')}{options} of the pipeline"
        yield Panel(
            "proposal",
            waiting,
            as_json=waiting.summary(),
            line=f"{what}, until {when(waiting.until)}: `pipeline publish --show`",
            decisions=["a proposal of the pipeline needs a decision"],
            typed=["poison pipeline publish --show"],
        )


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = {"published": ""}
EXTENSION = ProposalsExtension
