"""A cell: a fresh process with the user's app, which runs one suspect after the other until one kills it.

Run as ``python -m celery_poison.worker.trial.cell FD``; reads what it needs from that socket.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from billiard.common import soft_timeout_sighandler
from celery import Celery
from celery.concurrency.prefork import process_initializer

from celery_poison.plugin import plugin_of
from celery_poison.worker import attempt
from celery_poison.worker.lease import Lease
from celery_poison.worker.pulse import keep_child_alive
from celery_poison.worker.recording import open_recorder
from celery_poison.worker.trial import frames
from celery_poison.worker.trial.loading import Origin, load


@dataclass(frozen=True, slots=True)
class Cellmate:
    """What a cell must know about its host.

    Attributes:
        worker: the host's incarnation.
    """

    origin: Origin
    worker: str


def main() -> None:
    host = socket.socket(fileno=int(sys.argv[1]))
    os.environ["FORKED_BY_MULTIPROCESSING"] = "1"  # Celery then prepares a fresh process like a pool's
    about: Cellmate = frames.receive(host)
    app = load(about.origin)
    node, _, _ = about.worker.rpartition("/")
    process_initializer(app, node)
    signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
    _prepare(app, about, node)
    frames.send(host, ("ready", os.getpid()))
    while True:
        try:
            target, arguments = frames.receive(host)
        except (EOFError, OSError):
            return
        frames.send(host, ("accepted", os.getpid(), time.monotonic()))
        frames.send(host, ("result", getattr(attempt, target)(*arguments)))


def _prepare(app: Celery, about: Cellmate, node: str) -> None:
    plugin = plugin_of(app)
    ledger = plugin.open_ledger()
    recorder = open_recorder(plugin, ledger, about.worker)
    lease = Lease(plugin.settings.activation_interval)
    lease.unknown()  # its host knows, and would end it
    attempt.configure(recorder, ledger, lease, contained=False)
    keep_child_alive(
        recorder.wire,
        ledger.keys.child(about.worker, os.getpid()),
        plugin.settings.heartbeat_interval,
        plugin.settings.activation_interval,
    )


if __name__ == "__main__":
    main()
