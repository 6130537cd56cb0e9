"""The history of a message that runs: ``self.request.poison``, and what its retry carries."""

from __future__ import annotations

from typing import NamedTuple

from celery_poison.causes import NO_EVIDENCE, Evidence


class Attempt(NamedTuple):
    """The history of the message that is running, as ``self.request.poison`` (WAS-2, EMS-7).

    Attributes:
        deliveries: starts of this task id, this one included.
        crashes: deaths it was running in; never reset.
        failures: times it was put back.
        redelivered: this message was delivered before, whether it was started or not: by the broker, or as
            what was parked, or released from quarantine.
        candidate: it is flagged as a blacklist candidate.
        on_trial: it runs alone, so that its death would convict it.
        last_cause: what its last run died of (``signal:9``, ``oom``, ...), or ``failure`` where that raised
            and ``keep_failures`` is set; empty where there was none.
        found: what is known about that, as :class:`~celery_poison.causes.Evidence` is encoded.
    """

    deliveries: int = 1
    crashes: int = 0
    failures: int = 0
    redelivered: bool = False
    candidate: bool = False
    on_trial: bool = False
    last_cause: str = ""
    found: str = ""

    @property
    def evidence(self) -> Evidence:
        """What is known about the end of its last run; every field is empty where it is not known."""
        return Evidence.decode(self.found) if self.found else NO_EVIDENCE

    @property
    def memory_kb(self) -> int | None:
        """The most memory that its last run's process had when that died, in KiB; None: not known."""
        return self.evidence.rss_kb

    @property
    def has_history(self) -> bool:
        """Whether the ledger keeps a record of this task id."""
        return self.deliveries > 1 or self.candidate


FIRST = Attempt()

#: Attempts running in this process, by task id. Kept out of the request, whose unknown entries Celery
#: would copy into the headers of retries.
attempts: dict[str, Attempt] = {}

#: What the retries that are being sent in this process carry in their header ``poison_failures``, by task id.
carried: dict[str, str] = {}
