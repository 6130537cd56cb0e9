"""A cell: a fresh process with the user's app, which runs one suspect after the other until one kills it.

``host.py`` opens it, through ``watcher.py``; it lives as long as those two, and says what it does on one
socket: ``("ready", pid, tasks)``, and for each suspect ``("accepted", pid, time)`` and
``("result", ok, pickled value, stays)``.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
from typing import Any

from billiard import current_process
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import MaybeEncodingError, soft_timeout_sighandler
from celery import Celery, signals
from celery.app.trace import setup_worker_optimizations
from celery.concurrency.prefork import process_initializer

from celery_poison.errors import ConfigurationError
from celery_poison.forking import real_thread_starter
from celery_poison.ledger.writer import Writer
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.requests import TaskDied
from celery_poison.sandbox import frames
from celery_poison.sandbox.loading import Cellmate, load
from celery_poison.sandbox.remains import LeakCheck
from celery_poison.worker import child, crash_reports
from celery_poison.worker.durable import open_durable
from celery_poison.worker.lease import Lease
from celery_poison.worker.presence.pulse import keep_child_alive
from celery_poison.worker.recorder import Recorder, open_recorder

#: Seconds for which the first sign of life is waited for, where it needs threads of its own.
FIRST_BEAT = 1.0

#: Whether it ran, and what a pool process would return or raise.
End = tuple[bool, Any]


def main(sock: int, lease: int) -> None:
    """Be a cell.

    Args:
        sock: descriptor of the socket to the host.
        lease: descriptor of the memory in which the host keeps its lease.
    """
    host = socket.socket(fileno=sock)
    about: Cellmate = frames.receive(host)
    app = load(about.origin)
    plugin = plugin_of(app)
    if (plugin.ledger_url, plugin.settings.namespace) != (about.ledger_url, about.namespace):
        raise ConfigurationError(
            "the app has another ledger when it is loaded anew than in its worker: is it configured"
            " in a part of the script that only the worker runs?"
        )
    recorder = _prepare(app, plugin, about, lease)
    frames.send(host, ("ready", os.getpid(), tuple(plugin.policies)))
    _serve(host, recorder)
    if real_thread_starter() is not None:
        os._exit(0)  # as a pool process: an interpreter ends badly beside a thread that gevent does not know


def _prepare(app: Celery, plugin: Plugin, about: Cellmate, lease: int) -> Recorder:
    node, _, _ = about.worker.rpartition("/")
    current_process().name = "Cell"  # in log lines
    _say_that_a_worker_begins(app, node)
    process_initializer(app, node)
    setup_worker_optimizations(app, node)
    # A service manager sends this to every process of its group when the worker is to end: that waits for
    # the trial. What the task itself has started is not affected.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    if about.deathbed:
        crash_reports.lie_down(about.deathbed, notes_signals=False)
    ledger, settings = plugin.open_ledger(), plugin.settings
    writer = Writer(ledger.client, ledger.keys.channel(about.worker), on_connect=child.still_running)
    durable = open_durable(settings, ledger, writer)
    recorder = open_recorder(settings, ledger, writer, node, plugin.policies, durable)
    recorder.secret = about.secret
    child.configure(recorder, ledger, Lease(settings.activation_interval, lease), contained=True)
    # A thread may share no connection with greenlets.
    own = writer if real_thread_starter() is None else Writer(plugin.open_ledger().client)
    keep_child_alive(
        own,
        ledger.keys.child(about.worker, os.getpid()),
        settings.heartbeat_interval,
        settings.activation_interval,
    )
    patience = time.monotonic() + FIRST_BEAT
    while own is not writer and not own.connects and time.monotonic() < patience:
        time.sleep(0.01)  # its thread has helpers of its own then, which no suspect has left behind
    return recorder


class _Stand:
    """What receivers of a worker's first signals get here for the worker."""

    def __init__(self, app: Celery, hostname: str) -> None:
        self.app, self.hostname = app, hostname


def _say_that_a_worker_begins(app: Celery, node: str) -> None:
    """Do what a pool process inherits from its worker: users and the Django fixup set things up then."""
    worker = _Stand(app, node)
    app.loader.init_worker()
    signals.celeryd_init.send(sender=node, instance=worker, conf=app.conf, options={})
    signals.worker_init.send(sender=worker)


def _serve(host: socket.socket, recorder: Recorder) -> None:
    check = LeakCheck()
    stays = True
    while stays:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        try:
            arguments, recorder.alone = frames.receive(host)
        except (EOFError, OSError):
            return
        frames.send(host, ("accepted", os.getpid(), time.monotonic()))
        ok, value = _run(arguments)
        stays = not _is_death(value) and check.finds_nothing()
        try:
            data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            ok, data = False, pickle.dumps(frames.info_of(MaybeEncodingError(error, value)))
        try:
            frames.send(host, ("result", ok, data, stays))
        except OSError:
            return


def _run(arguments: tuple[Any, ...]) -> End:
    """Run one suspect; return what a pool process would tell about it."""
    try:
        signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
        try:
            return True, child.run_fast(*arguments)
        except Exception as error:
            return False, frames.info_of(error)
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    except SoftTimeLimitExceeded as error:  # it came when the task had just ended
        return False, frames.info_of(error)


def _is_death(value: Any) -> bool:
    if not isinstance(value, tuple) or not value[0]:
        return False
    error = value[1].exception
    return isinstance(getattr(error, "exc", error), TaskDied)
