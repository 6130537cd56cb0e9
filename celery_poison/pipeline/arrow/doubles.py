"""Which words come more than once in a journal: found by their hashes, 8 bytes for each.

Tasks write the hashes down, sorted; then each of several tasks compares what lies in its part of all 64-bit
numbers. Two different words may have one hash: who asks must not mind to be told a word too many.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

#: Of a longer word, its length and so many bytes count.
_BYTES = 64
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_ALL = 2**64


def hashes(words: pa.Array) -> Any:
    """Return a uint64 for each word of a string array; anything for a null."""
    _, offsets, data = words.buffers()
    ends = np.frombuffer(offsets, np.int32)[words.offset : words.offset + len(words) + 1].astype(np.int64)
    starts, lengths = ends[:-1] - ends[0], np.diff(ends)
    text = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    text = np.concatenate([text, np.zeros(8, np.uint8)])
    eights = np.ndarray(len(text) - 7, "<u8", text, strides=(1,))  # the 8 bytes from each byte on
    found = lengths.astype(np.uint64)
    for begin in range(0, min(_BYTES, int(lengths.max(initial=0))), 8):
        left = np.clip(lengths - begin, 0, 8).astype(np.uint64)
        there = left > 0
        word = eights[np.where(there, starts + begin, 0)]
        beyond = (np.uint64(8) - left) * np.uint64(8) % np.uint64(64)
        word = np.where(there, word << beyond, np.uint64(0))
        found = (found ^ word) * _FACTOR
        found ^= found >> np.uint64(29)
    return found


def save(chunks: Sequence[Any], into: str) -> str:
    """Write hashes down for :func:`among`, and return where."""
    path = f"{into}/{uuid.uuid4()}.npy"
    np.save(path, np.sort(np.concatenate([np.zeros(0, np.uint64), *chunks])))
    return path


def among(paths: Sequence[str], part: int, of: int) -> Any:
    """Return the hashes that come more than once in all files, sorted, in one part of all numbers."""
    low, high = (np.uint64(min(_ALL // of * n, _ALL - 1)) for n in (part, part + 1))
    pieces = [np.zeros(0, np.uint64)]
    for path in paths:
        sorted_ = np.load(path, mmap_mode="r")
        end = len(sorted_) if part + 1 == of else sorted_.searchsorted(high)
        pieces.append(sorted_[sorted_.searchsorted(low) : end])
    every = np.sort(np.concatenate(pieces))
    return np.unique(every[1:][every[1:] == every[:-1]])
