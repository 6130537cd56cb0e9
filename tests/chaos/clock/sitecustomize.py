"""Moves the clock of a worker: the first thing that Python imports, where this directory is on its path.

``time.time`` and ``time.time_ns`` read an offset in seconds, which the program may change at any moment,
from a file in shared memory. Nothing else is touched: sleeping and waiting go by the monotonic clock.
"""

import mmap
import os
import struct
import time


def _move(path: str) -> None:
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    real, real_ns = time.time, time.time_ns

    def offset() -> float:
        return float(struct.unpack_from("d", memory)[0])

    time.time = lambda: real() + offset()
    time.time_ns = lambda: real_ns() + int(offset() * 1e9)


if "POISON_CHAOS_CLOCK" in os.environ:
    _move(os.environ["POISON_CHAOS_CLOCK"])
