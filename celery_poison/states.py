"""The five states of a guarded message, and what the journal calls the ways between them (SAP-1)."""

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


class Event(StrEnum):
    """What the journal calls a transition or an incident (journal schema v1)."""

    FINISHED = "finished"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"
    ROLLED_BACK = "rolled_back"
    CLEARED = "cleared"
    DUPLICATE = "duplicate"
    PARKED = "parked"
    UNPARKED = "unparked"
    QUARANTINED = "quarantined"
    WOULD_QUARANTINE = "would_quarantine"
    SENT = "sent"
    RELEASED = "released"
    RELEASE_SCHEDULED = "release_scheduled"
    RELEASE_UNSCHEDULED = "release_unscheduled"
    FAILED = "failed"
    DISCARDED = "discarded"
    EDITED = "edited"
    COPIED = "copied"
    RESTORED = "restored"
    PURGED = "purged"
    STALE = "stale"
    POLICY_CHANGED = "policy_changed"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    PAUSED = "paused"
    RESUMED = "resumed"
    ENDPOINT_SUSPENDED = "endpoint_suspended"
    ENDPOINT_RESUMED = "endpoint_resumed"
    PROPOSAL_MADE = "proposal_made"
    PROPOSAL_APPLIED = "proposal_applied"
    PROPOSAL_DISMISSED = "proposal_dismissed"
    PROPOSAL_TAKEN_BACK = "proposal_taken_back"
    WORKER_LOST = "worker_lost"
    ACT_ASKED_FOR = "act_asked_for"
    ACT_AGREED_TO = "act_agreed_to"
    GATE_CLOSED = "gate_closed"
    GATE_LIFTED = "gate_lifted"
    FAILOVER_FINISHED = "failover_finished"
    WORKER_STARTED = "worker_started"
    WORKER_STOPPED = "worker_stopped"
    MONITOR_CHANGED = "monitor_changed"
    SEND_FAILED = "send_failed"
    SEND_RETRIED = "send_retried"
    SEND_DROPPED = "send_dropped"
    QUEUE_BLOCKED = "queue_blocked"
    QUEUE_UNBLOCKED = "queue_unblocked"
    QUEUE_FILLING = "queue_filling"
