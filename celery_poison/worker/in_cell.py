"""What a cell runs tasks with: the set-up of a pool process of its worker. ``sandbox.child`` is handed it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from celery import Celery, signals
from celery.app.trace import setup_worker_optimizations
from celery.concurrency.prefork import process_initializer

from celery_poison.errors import ConfigurationError
from celery_poison.forking import real_thread_starter
from celery_poison.ledger.writer import Writer
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.sandbox.trial import Prepared
from celery_poison.worker import child, crash_reports
from celery_poison.worker.durable import open_durable
from celery_poison.worker.lease import Lease, keep_child_alive
from celery_poison.worker.recorder import Recorder, open_recorder

#: Seconds for which the first sign of life is waited for, where it needs threads of its own.
FIRST_BEAT = 1.0


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a cell must know about the worker for which it runs tasks.

    Attributes:
        worker: its incarnation.
        ledger_url, namespace: where its ledger is; the app must say the same in the cell.
        secret: the ledger's key of fingerprints.
        crash_reports: directory in which a process leaves its crash report; empty for none.
    """

    worker: str
    ledger_url: str
    namespace: str
    secret: bytes
    crash_reports: str


def prepare(facts: WorkerFacts, app: Celery, lease: int) -> Prepared:
    """Make this fresh process one that runs the tasks of ``app``.

    Args:
        lease: descriptor of the memory in which the worker keeps its lease.

    Raises:
        ConfigurationError: the app, loaded here, has another ledger than in its worker.
    """
    plugin = plugin_of(app)
    if (plugin.ledger_url, plugin.settings.namespace) != (facts.ledger_url, facts.namespace):
        raise ConfigurationError(
            "the app has another ledger when it is loaded anew than in its worker: is it configured"
            " in a part of the script that only the worker runs?"
        )
    node, _, _ = facts.worker.rpartition("/")
    _say_that_a_worker_begins(app, node)
    process_initializer(app, node)
    setup_worker_optimizations(app, node)
    if facts.crash_reports:
        crash_reports.begin_report(facts.crash_reports, notes_signals=False)
    recorder = _open_recorder(plugin, facts, node, lease)

    def run(arguments: tuple[Any, ...], alone: int) -> Any:
        recorder.alone = alone
        return child.run_fast(*arguments)

    return Prepared(run, tuple(plugin.policies))


def _open_recorder(plugin: Plugin, facts: WorkerFacts, node: str, lease: int) -> Recorder:
    ledger, settings = plugin.open_ledger(), plugin.settings
    writer = Writer(ledger.client, ledger.keys.channel(facts.worker), on_connect=child.still_running)
    durable = open_durable(settings, ledger, writer)
    recorder = open_recorder(settings, ledger, writer, node, plugin.policies, durable)
    recorder.secret = facts.secret
    child.configure(recorder, ledger, Lease(settings.activation_interval, lease), contained=True)
    # A thread may share no connection with greenlets.
    own = writer if real_thread_starter() is None else Writer(plugin.open_ledger().client)
    keep_child_alive(
        own,
        ledger.keys.child(facts.worker, os.getpid()),
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
