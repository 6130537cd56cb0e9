"""Workers in a control group of their own, where the machine permits that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_poison.testing import Worker, wait_until


class Confined(Worker):
    """A worker in a control group."""

    group: Path

    def command(self) -> list[str]:
        join = f'echo $$ > {self.group}/cgroup.procs && exec "$@"'
        return ["sh", "-c", join, "sh", *super().command()]


@contextmanager
def new_memory_group(limit: int) -> Iterator[Path]:
    """A control group (cgroup v1 or v2) whose processes may use so many bytes; skips where there is none."""
    base, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if not base.is_dir():
        base, name = Path("/sys/fs/cgroup"), "memory.max"
    group = base / f"celery-poison-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / name).write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), what="the control group is empty")
    group.rmdir()
