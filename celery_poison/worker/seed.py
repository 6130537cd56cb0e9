"""Makes a process that a nursery has forked one that runs a task: a cell, set up like a pool process.

``cells.cell`` is handed :func:`prepare` with the :class:`Seed` of its worker.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

from celery import Celery, signals
from celery.app.trace import setup_worker_optimizations

from celery_poison.basics.forking import real_thread_starter
from celery_poison.errors import ConfigurationError
from celery_poison.ledger import Ledger
from celery_poison.ledger.writer import Writer
from celery_poison.plugin import Plugin, Policies, plugin_of
from celery_poison.policy import Overrides
from celery_poison.worker import crash_reports
from celery_poison.worker.child import still_running
from celery_poison.worker.durable import open_durable
from celery_poison.worker.lease import Lease, born_as, keep_child_alive
from celery_poison.worker.recorder import Recorder
from celery_poison.worker.site import Serving, serve
from celery_poison.worker.task_body import surround

#: Seconds for which the first sign of life is waited for, where it needs threads of its own.
FIRST_BEAT = 1.0

#: Whether this process is a cell.
is_cell = False


class Seed(NamedTuple):
    """The part of a worker's state that a cell needs and its nursery does not have.

    Attributes:
        worker: the incarnation for which it runs a task.
        ledger: URL and namespace of that worker's ledger; an app that is loaded anew must say the same.
        overrides: of policies, at run time.
        secret: the ledger's key of fingerprints.
        reports: directory in which a process leaves its crash report; empty for none.
        task: what it runs; ``alone``: what its start says about what runs beside it.
    """

    worker: str
    ledger: tuple[str, str]
    overrides: Overrides
    secret: bytes
    reports: str
    task: str
    alone: int


def prepare(seed: Seed, app: Celery, ledger: Ledger | None, lease: int) -> None:
    """Make this forked process one that runs a task, as a process of the pool.

    Where the app was loaded anew, what its worker was told once is told here.

    Raises:
        ConfigurationError: the app, loaded anew, has another ledger than in its worker, or not this task.
    """
    from celery.concurrency.prefork import process_initializer  # not in other pools' workers: hooks.py

    global is_cell
    is_cell = True
    plugin = plugin_of(app)
    plugin.policy_overrides = seed.overrides
    node, _, _ = seed.worker.rpartition("/")
    if ledger is None:
        _replay_startup_signals(plugin, seed, node)
    process_initializer(app, node)
    if seed.reports:
        crash_reports.begin_report(seed.reports, notes_signals=False)
    recorder = _open_recorder(plugin, ledger or plugin.open_ledger(), lease, seed.worker)
    recorder.secret, recorder.alone = seed.secret, seed.alone


def _replay_startup_signals(plugin: Plugin, seed: Seed, node: str) -> None:
    app = plugin.app
    if (plugin.ledger_url, plugin.settings.namespace) != seed.ledger or seed.task not in plugin.policies:
        raise ConfigurationError(
            f"the app has another ledger, or no guarded task {seed.task}, when it is loaded anew: is it"
            " configured where only the worker runs?"
        )
    stand_in: Any = type("Worker", (), {"app": app, "hostname": node, "pool_cls": "threads"})()
    app.loader.init_worker()
    signals.celeryd_init.send(sender=node, instance=stand_in, conf=app.conf, options={})
    signals.worker_init.send(sender=stand_in)
    surround(app)
    setup_worker_optimizations(app, node)


def _open_recorder(plugin: Plugin, ledger: Ledger, lease: int, worker: str) -> Recorder:
    settings, (node, _, boot) = plugin.settings, worker.rpartition("/")
    boot_id = born_as(boot)
    writer = Writer(ledger.client, ledger.keys.channel(worker), on_connect=partial(still_running, boot_id))
    durable = open_durable(settings, ledger, writer)
    recorder = Recorder(settings, ledger.keys, writer, node, Policies(plugin), durable, ledger)
    lent = Lease(settings.activation_interval, lease)
    serve(boot_id, Serving(recorder, ledger, lent, contained=True))
    # A thread may share no connection with greenlets.
    own = writer if real_thread_starter() is None else Writer(plugin.open_ledger().client)
    keep_child_alive(own, ledger.keys, worker, settings, lent)
    patience = time.monotonic() + FIRST_BEAT
    while own is not writer and not own.connects and time.monotonic() < patience:
        time.sleep(0.01)  # its thread has helpers of its own then, which no suspect has left behind
    return recorder
