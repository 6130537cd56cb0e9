"""What the journal says of proposals."""

from __future__ import annotations

from collections.abc import Callable

from celery_poison.desk.sentences import Entry, act_sentence

SENTENCES: dict[str, Callable[[Entry], str]] = {
    "proposal_made": lambda entry: act_sentence("the pipeline's proposal made", entry),
    "proposal_applied": lambda entry: act_sentence("the pipeline's proposal applied", entry),
    "proposal_dismissed": lambda entry: act_sentence("the pipeline's proposal dismissed", entry),
    "proposal_taken_back": lambda entry: act_sentence("effects of the pipeline's proposals undone", entry),
}
