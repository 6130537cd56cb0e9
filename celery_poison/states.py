"""The five states of a guarded message (SAP-1; docs/states.md has the ways between them)."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a message stands. The values are what Redis, the journal and JSON show.

    A message without a history has no record: its TBDL and DLVD are implicit. DLNG *is* the
    entry in the ``running`` hash, so that no second record can disagree with it.
    """

    TBDL = "TBDL"
    """To be delivered: waiting in its queue, or prefetched and not started."""
    DLNG = "DLNG"
    """Being delivered: a start is recorded and its end is not."""
    DLVD = "DLVD"
    """Delivered: the task ended, whatever its result."""
    NDLV = "NDLV"
    """Not deliverable: in quarantine until a person decides."""
    FAIL = "FAIL"
    """Given up by a person."""


#: States that messages can be listed in, and what each means; of what has ended nothing is on record.
LISTED = {
    State.NDLV: "in quarantine",
    State.FAIL: "given up",
    State.DLNG: "running",
    State.TBDL: "waiting, with a history",
}


def kept_state(typed: str) -> State:
    """Return the state of this name, in whatever case.

    Raises:
        ValueError: there is none, or messages cannot be listed in it.
    """
    found = next((state for state in LISTED if state == typed.upper()), None)
    if found is None:
        listed = ", ".join(f"{state} ({what})" for state, what in LISTED.items())
        raise ValueError(f"{typed!r} is no state that messages are listed in: write {listed}")
    return found


class Event(StrEnum):
    """Journal events (docs/journal.md) that decisions depend on."""

    FINISHED = "finished"
    CRASHED = "crashed"
    ROLLED_BACK = "rolled_back"
    CLEARED = "cleared"
    QUARANTINED = "quarantined"
    WOULD_QUARANTINE = "would_quarantine"
    RELEASED = "released"
    FAILED = "failed"
    DISCARDED = "discarded"
