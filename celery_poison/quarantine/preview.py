"""A stored body for people's eyes: decoded if it is JSON, else its first bytes. Never unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from celery_poison.model import Parcel
from celery_poison.quarantine.body import BodyBroken, BodyRefused, json_of, unpacked
from celery_poison.text import clean

#: Bytes that are unpacked and decoded for display at most.
READABLE = 1024 * 1024
#: Lines of JSON, and bytes of anything else, that are shown.
LINES, BYTES = 200, 256


def decoded(parcel: Parcel) -> Any:
    """Return the JSON value of a body, or None if it is none or too large to read."""
    if len(parcel.body) > READABLE:
        return None
    try:
        # Infinity and NaN are no JSON: our own output must be read by everybody.
        return json_of(parcel, READABLE, parse_constant=str)
    except (BodyBroken, BodyRefused):
        return None


def preview(parcel: Parcel) -> Iterator[str]:
    """Yield lines that show a body, however it is made; ``--raw`` gives all of it."""
    method = parcel.headers.get("compression")
    packed = f", compressed ({clean(method)})" if method else ""
    yield f"{len(parcel.body)} bytes of {clean(parcel.content_type) or 'no declared type'}{packed}"
    value = decoded(parcel)
    if value is None:
        yield from _dump(_readable(parcel))
        return
    lines = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
    yield from map(clean, lines[:LINES])
    if len(lines) > LINES:
        yield f"... {len(lines) - LINES} more lines"


def _readable(parcel: Parcel) -> bytes:
    try:
        return unpacked(parcel, READABLE)
    except (BodyBroken, BodyRefused):
        return parcel.body


def _dump(body: bytes) -> Iterator[str]:
    for position in range(0, min(len(body), BYTES), 16):
        row = body[position : position + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{position:08x}  {row.hex(' '):<47}  {text}"
    if len(body) > BYTES:
        yield f"... {len(body) - BYTES} more bytes"
