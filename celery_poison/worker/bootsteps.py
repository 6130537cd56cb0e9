"""The bootsteps that Celery loads: one for the worker's life, one for each broker connection."""

from __future__ import annotations

import atexit
import os
import sys
import time
from functools import partial
from typing import Any

from celery import bootsteps, signals
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.utils.log import get_logger
from celery.worker import state

from celery_poison.errors import PoisonError
from celery_poison.failover.monitor import Monitor
from celery_poison.plugin import plugin_of
from celery_poison.sandbox.trial import TimeLimits
from celery_poison.worker import crash_reports
from celery_poison.worker.admission import Admission
from celery_poison.worker.dispatcher import Dispatcher
from celery_poison.worker.heartbeat import Heartbeat
from celery_poison.worker.lease import keep_child_alive
from celery_poison.worker.reconnect_cleanup import hear_of_begun
from celery_poison.worker.worker import Worker

logger = get_logger("celery_poison")


class LifeStep(bootsteps.StartStopStep):
    """Opens the runtime before the pool forks; says farewell after everything was acknowledged."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        pool = worker.pool_cls
        contained = not issubclass(pool, PreforkPool)
        name = pool.__module__.rpartition(".")[2]
        try:
            runtime = Worker(
                worker.app,
                worker.hostname,
                name,
                worker.concurrency,
                contained=contained,
                limits=_limits_of(worker, name),
            )
        except PoisonError as error:
            sys.exit(f"celery_poison: {error}")
        plugin_of(worker.app).runtime = runtime
        runtime.refresher.policies()
        runtime.refresher.blocks()
        self._runtime = runtime
        if not contained:
            signals.worker_process_init.connect(self._child_begins)
        signals.worker_shutting_down.connect(self._stopping)
        signals.worker_shutdown.connect(self._farewell)
        # Celery sends no signal at the end of a cold shutdown.
        atexit.register(self._farewell)

    def stop(self, worker: Any) -> None:
        """Wait for the trial that goes on, as the pool is waited for."""
        runtime, hub, beat = self._runtime, worker.hub, 0
        runtime.stopping = True  # no signal tells of a shutdown by remote control
        runtime.vitals.asked_to_leave()
        while runtime.cells.is_busy and state.should_terminate in (None, False):
            if hub is not None and beat % 10 == 0:
                hub.fire_timers()  # among them the heartbeats of the broker's connection
            beat += 1
            time.sleep(0.05)
            runtime.loop.drain()
            hear_of_begun(runtime.loop.consumer)  # and of what has ended: it is acknowledged meanwhile
        runtime.cells.end()

    def terminate(self, worker: Any) -> None:
        self._runtime.cells.end()

    def _child_begins(self, **_: Any) -> None:
        runtime = self._runtime
        if runtime.crash_reports is not None:
            crash_reports.begin_report(runtime.crash_reports.path)
        keep_child_alive(
            runtime.writer,
            runtime.ledger.keys.child(runtime.worker, os.getpid()),
            runtime.settings.heartbeat_interval,
            runtime.settings.activation_interval,
        )

    def _stopping(self, sig: str = "", **_: Any) -> None:
        # Called from a signal handler: nothing but this may be done here.
        self._runtime.stopping = True
        self._runtime.vitals.asked_to_leave(sig)

    def _farewell(self, **_: Any) -> None:
        atexit.unregister(self._farewell)
        if os.getpid() == self._runtime.me.pid:
            self._runtime.stopping = True
            self._runtime.farewell()


def _limits_of(worker: Any, pool: str) -> TimeLimits:
    return TimeLimits(
        worker.soft_time_limit,
        worker.time_limit,
        enforces_soft=pool == "prefork",
        enforces_hard=pool in ("prefork", "gevent"),
        pool=pool,
    )


class GuardStep(bootsteps.ConsumerStep):
    """Puts the door and the gate into a consumer, and starts the threads once the pool has forked."""

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        runtime: Worker = plugin_of(consumer.app).runtime
        self._runtime = runtime
        self._gate = Dispatcher(
            consumer.on_task_request,
            lambda request: getattr(request, "runs_alone", False),
            runtime.may_start,
            lambda seconds, call: consumer.timer.call_after(seconds, call),
            lambda: consumer.pool.maintain_pool(),
            runtime.cells,
            self._received,
        )
        consumer.on_task_request = self._gate
        create = consumer.create_task_handler
        consumer.create_task_handler = lambda *args, **kw: Admission(runtime, create(*args, **kw))
        self._heartbeat = Heartbeat(runtime)
        self._monitor = Monitor(
            consumer.app,
            runtime.ledger,
            runtime.settings,
            runtime.identity,
            self._announce_candidate,
            runtime.refresher.policies,
            self._announce_fleet,
        )

    def _received(self, request: Any) -> None:
        if (delivery := getattr(request, "poison", None)) is not None:
            self._runtime.admit_marks.close(delivery)

    def _announce_candidate(self, *facts: Any) -> None:
        self._runtime.loop.call_in_loop(partial(self._runtime.announce.candidate, *facts))

    def _announce_fleet(self, name: str, facts: dict[str, Any]) -> None:
        self._runtime.loop.call_in_loop(partial(self._runtime.announce.fleet, name, facts))

    def get_consumers(self, channel: Any) -> list[Any]:
        return []

    def start(self, consumer: Any) -> None:
        self._runtime.connected(consumer)
        self._runtime.begin()
        self._runtime.cells.attach(self._gate.take_back)
        self._heartbeat.start()
        self._monitor.start()

    def stop(self, consumer: Any) -> None:
        if consumer.blueprint.state == bootsteps.RUN:  # its connection is lost; else the worker leaves
            self._runtime.resync.broker_is_away = True
            self._runtime.disconnected()
        self._gate.clear()

    def shutdown(self, consumer: Any) -> None:
        self._gate.clear()
        self._monitor.stop()

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        self._runtime.loop.register(hub)
