"""What a cell runs tasks with: the set-up of a pool process of its worker. ``sandbox.child`` is handed it."""

from __future__ import annotations

import time
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
from celery_poison.worker.recorder import Recorder

#: Seconds for which the first sign of life is waited for, where it needs threads of its own.
FIRST_BEAT = 1.0


def prepare(
    worker: str, ledger: tuple[str, str], secret: bytes, reports: str, app: Celery, lease: int
) -> Prepared:
    """Make this fresh process one that runs the tasks of ``app``.

    Args:
        worker: the incarnation for which it runs them.
        ledger: URL and namespace of that worker's ledger; the app must say the same here.
        secret: the ledger's key of fingerprints.
        reports: directory in which a process leaves its crash report; empty for none.
        lease: descriptor of the memory in which the worker keeps its lease.

    Raises:
        ConfigurationError: the app, loaded here, has another ledger than in its worker.
    """
    plugin = plugin_of(app)
    if (plugin.ledger_url, plugin.settings.namespace) != ledger:
        raise ConfigurationError(
            "the app has another ledger when it is loaded anew than in its worker: is it configured"
            " in a part of the script that only the worker runs?"
        )
    node, _, _ = worker.rpartition("/")
    # What a pool process inherits from its worker: users and the Django fixup set things up then.
    stand_in: Any = type("Worker", (), {"app": app, "hostname": node})()
    app.loader.init_worker()
    signals.celeryd_init.send(sender=node, instance=stand_in, conf=app.conf, options={})
    signals.worker_init.send(sender=stand_in)
    process_initializer(app, node)
    setup_worker_optimizations(app, node)
    if reports:
        crash_reports.begin_report(reports, notes_signals=False)
    recorder = _open_recorder(plugin, worker, node, lease)
    recorder.secret = secret

    def run(arguments: tuple[Any, ...], alone: int) -> Any:
        recorder.alone = alone
        return child.run_fast(*arguments)

    return Prepared(run, tuple(plugin.policies))


def _open_recorder(plugin: Plugin, worker: str, node: str, lease: int) -> Recorder:
    ledger, settings = plugin.open_ledger(), plugin.settings
    writer = Writer(ledger.client, ledger.keys.channel(worker), on_connect=child.still_running)
    durable = open_durable(settings, ledger, writer)
    recorder = Recorder(settings, ledger.keys, writer, node, plugin.policies, durable)
    child.configure(recorder, ledger, Lease(settings.activation_interval, lease), contained=True)
    # A thread may share no connection with greenlets.
    own = writer if real_thread_starter() is None else Writer(plugin.open_ledger().client)
    keep_child_alive(own, ledger.keys, worker, settings)
    patience = time.monotonic() + FIRST_BEAT
    while own is not writer and not own.connects and time.monotonic() < patience:
        time.sleep(0.01)  # its thread has helpers of its own then, which no suspect has left behind
    return recorder
