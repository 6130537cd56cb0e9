"""What each peer's app shares: the task, the way it dies, and the verbs that `peers.py` calls.

    python peer.py MODULE send|fate|worker

The environment: PEER_URL, of the private server; PEER_MARKS, the file of starts and ends; PEER_KILLS,
"process" or "worker"; PEER_BEST, "1" where the peer's best options are set, else empty.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import time
from pathlib import Path

POISON = "poison"
NAMES = [POISON, *(f"h{number}" for number in range(20))]
URL = os.environ["PEER_URL"]
BEST = bool(os.environ["PEER_BEST"])


def run(name: str) -> None:
    """Be the task: the poison kills, the others take 20 ms."""
    _mark("start", name)
    if name == POISON:
        _die()
    time.sleep(0.02)
    _mark("end", name)


def _mark(event: str, name: str) -> None:
    file = os.open(os.environ["PEER_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{event} {name}\n".encode())
    os.close(file)


def _die() -> None:
    """Kill this process, or with it all of its session, which is its worker's."""
    if os.environ["PEER_KILLS"] == "worker":
        others = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        for pid in others:
            try:
                if pid != os.getpid() and os.getsid(pid) == os.getsid(0):
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    done = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
    print(asyncio.run(done) if asyncio.iscoroutine(done) else done)
