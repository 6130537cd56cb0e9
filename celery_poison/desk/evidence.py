"""What the evidence of a death says, in plain words."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Final

from celery_poison.basics.pulse import ALIVE
from celery_poison.basics.rooms import rooms_with
from celery_poison.basics.sparkline import sparkline
from celery_poison.basics.text import between
from celery_poison.causes import Evidence

_NOTICED: Final[Mapping[str, str]] = {
    "gone": "All connections of its worker were gone at once.",
    "silent": "Its worker was not heard of any more.",
    "frozen": "Its worker was connected, but did not answer any more.",
}

#: File and line at the end of ``function (file:line)``, without directories.
_PLACE: Final = re.compile(r"([^/()]+:\d+)\)$")


def _mib(kb: int | None) -> str:
    return f"{(kb or 0) / 1024:.0f} MiB"


def _size(kb: int) -> str:
    return f"{kb / (1 << 20):.1f} GiB" if kb >= 1 << 20 else _mib(kb)


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.1f} s"


def died_when(evidence: Evidence) -> str:
    """When its worker died, in words, as far as it is known; the empty string where it is not."""
    known = evidence.after_ms is not None and evidence.by_ms is not None
    return between(evidence.after_ms / 1000, evidence.by_ms / 1000) if known else ""  # type: ignore[operator]


def sentence_of(evidence: Evidence) -> str:
    """Return the evidence in plain words; the empty string for nothing."""
    brought = (room.sentence_of(evidence) for room in rooms_with("evidence"))
    sentences = [_who_sent_it(evidence), *brought, growth_of(evidence)]
    if evidence.rss_kb:
        whose = ", poison_trial_memory_limit" if evidence.limit_of == "trial" else ""
        limit = f" (limit {evidence.limit_kb / 1024:,.0f} MiB{whose})" if evidence.limit_kb else ""
        sentences.append(f"Memory: peak {evidence.rss_kb / 1024:,.0f} MiB{limit}.")
    if evidence.stack and evidence.recursion:
        sentences.append(f"Its functions called each other without end, at last {evidence.stack[0]}.")
    elif evidence.stack:
        within = f", within {evidence.stack[0]}" if evidence.stack[0] != evidence.source else ""
        what = "The event loop of its worker stood" if evidence.noticed else "Its Python code was"
        sentences.append(f"{what} in {evidence.source}{within}.")
    return " ".join(filter(None, sentences))


def _who_sent_it(evidence: Evidence) -> str:
    if evidence.noticed:
        return _of_the_worker(evidence)
    if evidence.oom:
        return "It was killed because memory ran out."
    if evidence.signal == signal.SIGKILL:
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


def growth_of(evidence: Evidence) -> str:
    """Whose memory grew, in plain words; the empty string for nothing."""
    if not evidence.grew_to_kb:
        return ""
    what = "oom, likely" if evidence.oom_likely and not evidence.oom else "Memory"
    if evidence.grown_kb == 0:  # known of the message whose record this is
        what = "Beside it, memory was about to be used up" if evidence.oom_likely else "Beside it"
    speed = f" {evidence.grew_kb_s * 1.024 / 1000:,.0f} MB/s" if evidence.grew_kb_s else ""
    code = place_in(evidence.grew_at)
    place = f" ({code})" if code else ""
    beside = (
        f"; {'1 other' if evidence.flat == 1 else f'{evidence.flat} others'} flat" if evidence.flat else ""
    )
    named = evidence.grew_task or "its process"
    curve = ""
    if evidence.grew_for_s and len(evidence.grew_curve) > 2:
        curve = f" {sparkline(evidence.grew_curve)} in {_seconds(evidence.grew_for_s * 1000)}"
    return f"{what}: {named} grew{speed} to {_size(evidence.grew_to_kb)}{curve}{place}{beside}."


def place_in(frame: str) -> str:
    """Return ``file:line`` of a ``function (path:line)``, without folders; empty where it has none."""
    found = _PLACE.search(frame)
    return found[1] if found else ""
