"""What is around a worker and can be spoilt: its clock, and the disk that it writes to."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
from pathlib import Path
from typing import Self

#: On the path of a Python whose clock can be moved, and in its environment.
CLOCKWORK, CLOCK = Path(__file__).with_name("clock"), "POISON_CHAOS_CLOCK"


class Clock:
    """How wrong the clock of one worker goes, in seconds; see ``clock/sitecustomize.py``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.write_bytes(struct.pack("d", 0.0))

    def environment(self) -> dict[str, str]:
        return {CLOCK: str(self._path)}

    def move(self, seconds: float) -> None:
        # Eight bytes in one write: nobody reads half a number.
        with self._path.open("r+b", buffering=0) as file:
            file.write(struct.pack("d", seconds))


class Disk:
    """A small file system in memory at ``path``, which can be filled.

    Args:
        mebibytes: its size.
    """

    def __init__(self, path: Path, mebibytes: int) -> None:
        self._path, self._mebibytes = path, mebibytes

    @staticmethod
    def available() -> bool:
        """Whether this user may mount one."""
        return os.geteuid() == 0

    def fill(self) -> None:
        """Leave no byte."""
        with (self._path / "ballast").open("wb", buffering=0) as file:
            size = 0
            while (room := os.statvfs(self._path)).f_bavail:
                with contextlib.suppress(OSError):  # somebody else has taken some of it
                    os.posix_fallocate(file.fileno(), size, room.f_bavail * room.f_bsize)
                    size += room.f_bavail * room.f_bsize

    def clear(self) -> None:
        (self._path / "ballast").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        size = f"size={self._mebibytes}m"
        self._path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "chaos", str(self._path)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        # Lazily: a process that ends just now may still have a file open there.
        subprocess.run(["umount", "--lazy", str(self._path)], check=False)
