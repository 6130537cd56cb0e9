"""What the evidence of a death says, in plain words."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Final

from celery_poison.basics.pulse import ALIVE
from celery_poison.basics.rooms import rooms_with
from celery_poison.basics.text import between
from celery_poison.causes import NEAR, Evidence

_NOTICED: Final[Mapping[str, str]] = {
    "gone": "All connections of its worker were gone at once.",
    "silent": "Its worker was not heard of any more.",
    "frozen": "Its worker was connected, but did not answer any more.",
}


def _mib(kb: int | None) -> str:
    return f"{(kb or 0) / 1024:.0f} MiB"


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.1f} s"


def died_when(evidence: Evidence) -> str:
    """When its worker died, in words, as far as it is known; the empty string where it is not."""
    known = evidence.after_ms is not None and evidence.by_ms is not None
    return between(evidence.after_ms / 1000, evidence.by_ms / 1000) if known else ""  # type: ignore[operator]


def sentence_of(evidence: Evidence) -> str:
    """Return the evidence in plain words; the empty string for nothing."""
    known = additions_of(evidence)
    sentences = [_who_sent_it(evidence), known]
    if evidence.rss_kb:
        what = "Its peak was" if "Memory: " in known else "Memory: peak"
        sentences.append(f"{what} {evidence.rss_kb / 1024:,.0f} MiB{_limit(evidence)}.")
    if evidence.stack and evidence.recursion:
        sentences.append(f"Its functions called each other without end, at last {evidence.stack[0]}.")
    elif evidence.stack:
        within = f", within {evidence.stack[0]}" if evidence.stack[0] != evidence.source else ""
        what = "The event loop of its worker stood" if evidence.noticed else "Its Python code was"
        sentences.append(f"{what} in {evidence.source}{within}.")
    return " ".join(filter(None, sentences))


def _limit(evidence: Evidence) -> str:
    if not evidence.limit_kb:
        return ""
    whose = ", poison_trial_memory_limit" if evidence.limit_of == "trial" else ""
    if evidence.oom and not whose and (evidence.rss_kb or 0) < NEAR * evidence.limit_kb:
        whose = ", shared with the other processes of its worker"
    return f" (limit {evidence.limit_kb / 1024:,.0f} MiB{whose})"


def additions_of(evidence: Evidence) -> str:
    """Return the additions of extensions, in plain words; the empty string for none."""
    return " ".join(filter(None, (room.sentence_of(evidence) for room in rooms_with("evidence"))))


def _who_sent_it(evidence: Evidence) -> str:
    if evidence.noticed:
        return _of_the_worker(evidence)
    if evidence.signal == signal.SIGKILL and not evidence.oom:
        unless = "" if evidence.oom is None else ", of which there is no sign"
        return (
            "The sender of SIGKILL is not known: the task itself, a person, or a kernel short of"
            f" memory{unless}."
        )
    if evidence.time_limit_s is not None:
        return f"Its hard time limit was {evidence.time_limit_s:g} s."
    return "A signal from outside asked its process to end." if evidence.is_from_outside else ""


def _of_the_worker(evidence: Evidence) -> str:
    when = died_when(evidence)
    sentences = [f"That was {when}." if when else "", _NOTICED.get(evidence.noticed, "")]
    if evidence.asked == ALIVE:
        sentences.append("The probe `alive` had called the worker beyond help.")
    elif evidence.asked_ms is not None:
        by = f" by {evidence.asked}" if evidence.asked else ""
        sentences.append(
            f"The worker had been asked to leave{by}, at most {_seconds(evidence.asked_ms)} before."
        )
    if evidence.used_kb and evidence.limit_kb and evidence.heard_ms is not None:
        of = "its control group" if evidence.limit_of == "group" else "the machine's memory"
        near = "near the limit" if evidence.near_limit else "not near the limit"
        sentences.append(
            f"At its last heartbeat, at most {_seconds(evidence.heard_ms)} before, {_mib(evidence.used_kb)}"
            f" of the {_mib(evidence.limit_kb)} of {of} were in use: {near}."
        )
    return " ".join(filter(None, [*sentences, _what_ended_it(evidence)]))


def _what_ended_it(evidence: Evidence) -> str:
    if evidence.noticed == "frozen" or evidence.oom_likely:
        return ""
    if evidence.asked == ALIVE:
        return ""
    if evidence.asked_ms is not None:
        return "It was killed before it had left; the sender is not known."
    if evidence.noticed != "gone":
        return "Its end is not known."
    maybe = " It may be a lack of memory." if evidence.near_limit else ""
    return f"The reason is not known.{maybe}"
