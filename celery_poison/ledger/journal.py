"""Schema v2 of the journal: its fields, in their fixed order, and how an entry is read back.

One Redis stream, one entry per transition, every entry with the same flat fields in the same order,
the empty string where a field does not apply. Never arguments, never bodies. docs/journal.md is the
contract; a test holds it against this module and against ``lua/_journal.lua``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

SCHEMA_VERSION = 2

FIELDS = (
    "v",
    "event",
    "id",
    "mid",
    "token",
    "task",
    "queue",
    "worker",
    "pid",
    "state",
    "cause",
    "outcome",
    "deliveries",
    "crashes",
    "strikes",
    "failures",
    "runtime_ms",
    "incident",
    "actor",
    "note",
    "payload_bytes",
    "memory_kb",
    "fingerprint",
    "shape",
    "release",
    "evidence",
)


def pairs(values: Mapping[str, str]) -> Iterator[str]:
    """Yield field and value alternately, in the order of the schema."""
    for name in FIELDS:
        yield name
        yield str(SCHEMA_VERSION) if name == "v" else values.get(name, "")
