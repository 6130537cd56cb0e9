"""A message of quarantine as one line of a file; its body is in base64, as received."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

#: Of the lines; raised when an older release can no longer read them.
VERSION = 1
NAMES = ("id", "mid", "task", "queue")
COUNTS = ("deliveries", "crashes", "strikes", "failures", "releases", "pid", "runtime_ms", "first_seen")
JSON = ("headers", "properties", "canvas", "evidence")
#: All that goes with a message; the rest is its ledger's own affair.
FIELDS = (
    *(*NAMES, *COUNTS, *JSON, "cause", "reason", "candidate", "worker", "incident", "content_type"),
    *("content_encoding", "arguments", "edited_from", "unprocessable", "fingerprint", "failure", "not_rerun"),
)


def line_of(raw: Mapping[str, bytes]) -> str:
    """Return one line for the ``message`` hash of a message."""
    # What is not Unicode survives as half a surrogate pair.
    fields = {name: raw[name].decode("utf-8", "surrogateescape") for name in FIELDS if name in raw}
    return json.dumps({"v": VERSION, **fields, "body_base64": base64.b64encode(raw["body"]).decode()})
