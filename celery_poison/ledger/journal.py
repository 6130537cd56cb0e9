"""Schema v3 of the journal: its fields, in their fixed order.

One Redis stream, one entry per transition, every entry with the same flat fields in the same order,
the empty string where a field does not apply. Never arguments, never bodies. docs/journal.md is the
contract; a test holds it against this module and ``lua/_journal.lua``. The quarantine's room reads it.
"""

from __future__ import annotations

SCHEMA_VERSION = 3

FIELDS = (
    *("v", "event", "id", "mid", "token", "task", "queue", "worker", "pid", "state", "cause", "outcome"),
    *("deliveries", "crashes", "strikes", "failures", "runtime_ms", "incident", "actor", "note"),
    *("payload_bytes", "memory_kb", "fingerprint", "shape", "release", "evidence"),
    *("enqueued_at", "run_memory_kb"),
)
