"""A stored body, opened and shown outside a worker: never unpickled, its size always bounded."""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from kombu.compression import get_decoder

from celery_poison.basics.text import clean
from celery_poison.errors import PoisonError
from celery_poison.model import StoredMessage

#: Bytes; a body that unpacks to more than this is not opened in an operator's process.
MAX_UNPACKED = 64 * 1024 * 1024

#: Bytes that are unpacked and decoded for display at most.
READABLE = 1024 * 1024
#: Lines of JSON, and bytes of anything else, that are shown.
LINES, BYTES = 200, 256

#: Bytes; bounds the dictionary that an LZMA header may ask for, beside its output.
_LZMA_MEMORY = 256 * 1024 * 1024


class BodyRefused(PoisonError):
    """The body may hold anything, but opening it here would be dangerous or is impossible."""


class BodyBroken(PoisonError):
    """The body is not what its headers say; no worker could read it either."""


def unpacked(stored: StoredMessage, limit: int = MAX_UNPACKED) -> bytes:
    """Return the body as its producer serialized it, at most ``limit`` bytes of it.

    Raises:
        BodyRefused: it unpacks to more than ``limit``, or it cannot be unpacked here within bounds.
        BodyBroken: it cannot be unpacked at all.
    """
    method = stored.headers.get("compression")
    if not method:
        return stored.body
    try:
        make = _OPENERS[get_decoder(method)]
    except (KeyError, TypeError):
        known = "zlib, bzip2 and lzma"
        raise BodyRefused(f"its body is compressed by {method!r}; only {known} are unpacked here") from None
    try:
        body = _opened(stored.body, limit, make)
    except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError) as error:
        raise BodyBroken(f"its body cannot be unpacked ({method}): {error}") from None
    if len(body) > limit:
        raise BodyRefused(f"its body of {len(stored.body)} bytes unpacks to more than {limit} bytes")
    return body


def json_of(stored: StoredMessage, limit: int = MAX_UNPACKED, **options: Any) -> Any:
    """Return the body decoded, if it is JSON; ``options`` are those of ``json.loads``.

    Raises:
        BodyRefused: it is not JSON, or see :func:`unpacked`.
        BodyBroken: it says JSON and is none.
    """
    if stored.content_type != "application/json":
        kind = stored.content_type or "of no declared type"
        raise BodyRefused(f"its body is {kind}, which is never decoded outside a worker")
    try:
        return json.loads(unpacked(stored, limit), **options)
    except ValueError as error:
        raise BodyBroken(f"its body is no JSON: {error}") from None
    except RecursionError:
        raise BodyRefused("its body is nested too deeply to be read here") from None


#: Keyed by kombu's own decoders, so that every alias of theirs is understood.
_OPENERS: dict[Any, Callable[[], Any]] = {
    zlib.decompress: zlib.decompressobj,
    bz2.decompress: bz2.BZ2Decompressor,
    lzma.decompress: lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY),
}


def _opened(body: bytes, limit: int, make: Callable[[], Any]) -> bytes:
    """Unpack as the standard library does: of zlib one stream, else all that follow; garbage is ignored."""
    out, streams = b"", 0
    while not streams or (body and make is not zlib.decompressobj):
        opener = make()
        try:
            out += opener.decompress(body, limit + 1 - len(out))
        except (OSError, lzma.LZMAError):
            if streams:
                break
            raise
        if len(out) > limit:
            break
        if not opener.eof:
            raise EOFError("it ends too early")
        body, streams = opener.unused_data, streams + 1
    return out


def decoded(stored: StoredMessage) -> Any:
    """Return the JSON value of a body, or None if it is none or too large to read."""
    if len(stored.body) > READABLE:
        return None
    try:
        # Infinity and NaN are no JSON: our own output must be read by every reader.
        return json_of(stored, READABLE, parse_constant=str)
    except (BodyBroken, BodyRefused):
        return None


def preview(stored: StoredMessage, redact: Callable[[Any], Any] = lambda value: value) -> Iterator[str]:
    """Yield lines that show a body, however it is made; ``--raw`` gives all of it.

    Args:
        redact: returns a decoded body without what is to be hidden; of others only the bytes are shown.
    """
    method = stored.headers.get("compression")
    packed = f", compressed ({clean(method)})" if method else ""
    yield f"{len(stored.body)} bytes of {clean(stored.content_type) or 'no declared type'}{packed}"
    value = decoded(stored)
    if value is None:
        try:
            body = unpacked(stored, READABLE)
        except (BodyBroken, BodyRefused):
            body = stored.body
        yield from _dump(body)
        return
    lines = json.dumps(redact(value), indent=2, ensure_ascii=False).splitlines()
    yield from map(clean, lines[:LINES])
    if len(lines) > LINES:
        yield f"... {len(lines) - LINES} more lines"


def _dump(body: bytes) -> Iterator[str]:
    for position in range(0, min(len(body), BYTES), 16):
        row = body[position : position + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{position:08x}  {row.hex(' '):<47}  {text}"
    if len(body) > BYTES:
        yield f"... {len(body) - BYTES} more bytes"
