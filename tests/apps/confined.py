"""Workers in a control group of their own, where the machine permits that."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
def new_memory_group(limit: int, name: str = "") -> Iterator[Path]:
    """A control group (cgroup v1 or v2) whose processes may use so many bytes; skips where there is none.

    `name` tells it from others of this process.
    """
    base, file = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if not base.is_dir():
        base, file = Path("/sys/fs/cgroup"), "memory.max"
    group = base / f"celery-poison-test-{os.getpid()}{name}"
    try:
        group.mkdir()
        (group / file).write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), what="the control group is empty")
    group.rmdir()


@contextmanager
def killed_as_a_whole(group: Path) -> Iterator[None]:
    """Let all processes of a control group die when its memory is used up, as Kubernetes' containers do."""
    whole, control = group / "memory.oom.group", group / "memory.oom_control"
    if whole.exists():
        whole.write_text("1")
        yield
        return
    control.write_text("1")  # the kernel only stops who wants more
    event = os.eventfd(0)
    with control.open() as told:
        (group / "cgroup.event_control").write_text(f"{event} {told.fileno()}")
    ending = threading.Event()

    def kill() -> None:
        while os.eventfd_read(event) and not ending.is_set():
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        yield
    finally:
        ending.set()
        os.eventfd_write(event, 1)
        killer.join()
        os.close(event)
