"""Evidence of a black box: the memory that grew before a death (NEW-19)."""

from __future__ import annotations

from dataclasses import dataclass

from celery_poison.basics.sparkline import sparkline
from celery_poison.causes import Evidence, place_in


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthEvidence:
    """Of memory that grew in the last seconds before a death.

    Attributes:
        grew_task: name of the task that grew by far the most; empty: none did, or only a process that many
            share.
        grew_to_kb: private memory of the process that grew, in KiB, and
        grew_kb_s: how fast it grew at last, in KiB a second.
        grew_at: where the Python code of what grew was, as ``function (file:line)``; of a message: its own.
        grew_curve: its memory at equal distances of time until the last look, in KiB, at most
            :data:`causes.MOST_NUMBERS` numbers, and
        grew_for_s: over how many seconds.
        flat: how many other tasks beside it hardly grew.
    """

    grew_task: str = ""
    grew_to_kb: int | None = None
    grew_kb_s: int | None = None
    grew_at: str = ""
    grew_curve: tuple[int, ...] = ()
    grew_for_s: float | None = None
    flat: int | None = None

    @property
    def place(self) -> str:
        """Where its own code was, if it is the evidence of a message that ran out of memory.

        Python's own, as ``<frozen importlib._bootstrap>``, is no place that anybody could repair.
        """
        return "" if "(<" in self.grew_at else self.grew_at


FIELDS = GrowthEvidence


def sentence_of(evidence: Evidence) -> str:
    """Name the task or process that grew, in plain words; the empty string for none."""
    grew = evidence.of(GrowthEvidence)
    if not grew.grew_to_kb:
        return ""
    what = "oom, likely" if evidence.oom_likely and not evidence.oom else "Memory"
    if evidence.grown_kb == 0:  # known of the message whose record this is
        what = "Beside it, memory was about to be used up" if evidence.oom_likely else "Beside it"
    speed = f" {grew.grew_kb_s * 1.024 / 1000:,.0f} MB/s" if grew.grew_kb_s else ""
    code = place_in(grew.place)
    place = f" ({code})" if code else ""
    beside = f"; {'1 other' if grew.flat == 1 else f'{grew.flat} others'} flat" if grew.flat else ""
    named = grew.grew_task or "its process"
    curve = ""
    if grew.grew_for_s and len(grew.grew_curve) > 2:
        curve = f" {sparkline(grew.grew_curve)} in {grew.grew_for_s:.1f} s"
    return f"{what}: {named} grew{speed} to {_size(grew.grew_to_kb)}{curve}{place}{beside}."


def _size(kb: int) -> str:
    return f"{kb / (1 << 20):.1f} GiB" if kb >= 1 << 20 else f"{kb / 1024:.0f} MiB"
