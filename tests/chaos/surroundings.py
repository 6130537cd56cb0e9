"""What is around a worker beside its network, and can be spoilt: its clock, and its disk."""

from __future__ import annotations

import contextlib
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

#: On the path of a Python whose clock can be moved, and in its environment.
CLOCKWORK, CLOCK = Path(__file__).with_name("clock"), "POISON_CHAOS_CLOCK"


def set_clock(path: Path, seconds: float) -> None:
    """Let the clock of a worker go so wrong that is told this path; see ``clock/sitecustomize.py``."""
    # Eight bytes in one write: nobody reads half a number.
    with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
        file.write(struct.pack("d", seconds))


@contextlib.contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[None]:
    """Mount a small file system in memory there, which takes root."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "chaos", str(path)], check=True)
    try:
        yield
    finally:
        # Lazily: a process that ends just now may still have a file open there.
        subprocess.run(["umount", "--lazy", str(path)], check=False)


@contextlib.contextmanager
def filled(path: Path) -> Iterator[None]:
    """Leave no byte of it free until the end of the block."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    yield
    ballast.unlink(missing_ok=True)
