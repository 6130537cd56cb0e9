"""Opening a stored body outside a worker: never unpickled, and never larger than its reader can bear."""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from kombu.compression import get_decoder

from celery_poison.errors import PoisonError
from celery_poison.model import Parcel

#: Bytes; a body that unpacks to more than this is not opened in an operator's process.
MAX_UNPACKED = 64 * 1024 * 1024

#: Bytes; bounds the dictionary that an LZMA header may ask for, beside its output.
_LZMA_MEMORY = 256 * 1024 * 1024


class BodyRefused(PoisonError):
    """The body may hold anything, but opening it here would be dangerous or is impossible."""


class BodyBroken(PoisonError):
    """The body is not what its headers say; no worker could read it either."""


def unpacked(parcel: Parcel, limit: int = MAX_UNPACKED) -> bytes:
    """Return the body as its producer serialized it, at most ``limit`` bytes of it.

    Raises:
        BodyRefused: it unpacks to more than ``limit``, or nobody here can unpack it within bounds.
        BodyBroken: it cannot be unpacked at all.
    """
    method = parcel.headers.get("compression")
    if not method:
        return parcel.body
    opener = _opener(method)
    try:
        body = opener(parcel.body, limit)
    except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError) as error:
        raise BodyBroken(f"its body cannot be unpacked ({method}): {error}") from None
    if len(body) > limit:
        raise BodyRefused(f"its body of {len(parcel.body)} bytes unpacks to more than {limit} bytes")
    return body


def json_of(parcel: Parcel, limit: int = MAX_UNPACKED, **options: Any) -> Any:
    """Return the body decoded, if it is JSON; ``options`` are those of ``json.loads``.

    Raises:
        BodyRefused: it is not JSON, or see :func:`unpacked`.
        BodyBroken: it says JSON and is none.
    """
    if parcel.content_type != "application/json":
        kind = parcel.content_type or "of no declared type"
        raise BodyRefused(f"its body is {kind}, which is never decoded outside a worker")
    try:
        return json.loads(unpacked(parcel, limit), **options)
    except ValueError as error:
        raise BodyBroken(f"its body is no JSON: {error}") from None
    except RecursionError:
        raise BodyRefused("its body is nested too deeply to be read here") from None


def _opener(method: str) -> Callable[[bytes, int], bytes]:
    try:
        found = _OPENERS[get_decoder(method)]
    except (KeyError, TypeError):
        known = "zlib, bzip2 and lzma"
        raise BodyRefused(f"its body is compressed by {method!r}; only {known} are unpacked here") from None
    return found


def _open_zlib(body: bytes, limit: int) -> bytes:
    opener = zlib.decompressobj()
    out = opener.decompress(body, limit + 1)
    if not opener.eof and len(out) <= limit:
        raise EOFError("it ends too early")
    return out


def _open_streams(body: bytes, limit: int, make: Callable[[], Any]) -> bytes:
    """Unpack streams that follow each other; like the standard library, ignore garbage after them."""
    out, streams = b"", 0
    while not streams or body:
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


def _open_bz2(body: bytes, limit: int) -> bytes:
    return _open_streams(body, limit, bz2.BZ2Decompressor)


def _open_lzma(body: bytes, limit: int) -> bytes:
    return _open_streams(body, limit, lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY))


#: Keyed by kombu's own decoders, so that every alias of theirs is understood.
_OPENERS: dict[Any, Callable[[bytes, int], bytes]] = {
    zlib.decompress: _open_zlib,
    bz2.decompress: _open_bz2,
    lzma.decompress: _open_lzma,
}
