"""The bootsteps that Celery loads: one for the worker's life, one for each broker connection."""

from __future__ import annotations

import _thread
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import bootsteps, signals
from celery.apps.worker import Worker as Program
from celery.utils.log import get_logger
from celery.worker import state

from celery_poison.basics.forking import real_thread_starter
from celery_poison.broker.kinds import broker_of
from celery_poison.cells.nursery import Nursery, unshareable
from celery_poison.cells.trial import PoolFacts
from celery_poison.errors import ConfigurationError, NoLedger, PoisonError, SchemaMismatch
from celery_poison.guard import install
from celery_poison.plugin import plugin_of
from celery_poison.upstream import hooks
from celery_poison.worker import inspecting as inspecting  # registers what `celery inspect` may ask
from celery_poison.worker.combining import combine
from celery_poison.worker.lease import Incarnation
from celery_poison.worker.life import Farewell, Life
from celery_poison.worker.pool_processes import hear_of_begun
from celery_poison.worker.sending import serve_requests
from celery_poison.worker.task_body import surround
from celery_poison.worker.worker import GuardedWorker

logger = get_logger("celery_poison")


class LifeStep(bootsteps.StartStopStep):
    """Builds the worker before the pool forks; says farewell after everything was acknowledged."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        pool, worker.poison = _facts_of(worker), None
        nursery: Nursery | str = ""
        try:
            install(worker.app)  # the plugin may be there by `plugin_of` alone
            _check_hooks()
            _check_start_method(worker, pool)
            surround(worker.app)
            me = Incarnation(worker.hostname)
            nursery = _open_nursery(worker, pool, me.first_worker)
            ours = self._worker = GuardedWorker(worker.app, me, pool, nursery)
            self._life = Life(ours)
            self._life.check()
        except PoisonError as error:
            if isinstance(nursery, Nursery):
                nursery.end()
            if not _goes_without(worker, error):
                sys.exit(f"celery_poison: {error}")
            self.enabled = False
            return
        worker.poison = self._life
        serve_requests(worker.app, worker.hostname, ours.request_needs())
        plugin_of(worker.app).complain_to(ours.complain)
        ours.refresher.policies()
        ours.refresher.blocks()
        ours.refresher.withhold()
        if not pool.contained:
            signals.worker_process_init.connect(self._life.child_begins)
        self._ends = Farewell(worker, self._life)

    def start(self, worker: Any) -> None:
        self._life.begin()

    def stop(self, worker: Any) -> None:
        """Wait for the trial that goes on, as the pool is waited for."""
        ours, hub, beat = self._worker, worker.hub, 0
        ours.shutdown.ask()  # no signal tells of a shutdown by remote control
        while ours.cells.is_busy and state.should_terminate in (None, False):
            if hub is not None and beat % 10 == 0:
                hub.fire_timers()  # among them the heartbeats of the broker's connection
            beat += 1
            time.sleep(0.05)
            ours.loop.drain()
            hear_of_begun(ours.loop.consumer)  # and of what has ended: it is acknowledged meanwhile
        ours.cells.end()

    def terminate(self, worker: Any) -> None:
        self._worker.shutdown.ask()
        self._worker.cells.end()


_has_warned = False


def _goes_without(worker: Any, error: PoisonError) -> bool:
    """Say, once a process, that nothing can be guarded where that is no reason not to start; return whether.

    A broker in memory ends with its worker, and a worker that is embedded in another program serves a test:
    both go on where there is no ledger, or only another app's. A worker that was started as a program on a
    real broker does not: there it is a mistake that would be noticed on the day of the first crash.
    """
    global _has_warned
    plugin = plugin_of(worker.app)
    is_reason = isinstance(error, (NoLedger, SchemaMismatch)) and plugin.settings.fail_open
    if not (is_reason and (_is_in_memory(worker.app) or not isinstance(worker, Program))):
        return False
    if not _has_warned:
        _has_warned = True
        logger.warning("celery_poison: tasks run unguarded in this process: %s", error)
    return True


def _is_in_memory(app: Any) -> bool:
    return broker_of(app.connection_for_read()).ends_with_process


#: What the log was told of already.
_warned: set[hooks.Misfit] = set()


def _open_nursery(worker: Any, pool: PoolFacts, me: str) -> Nursery | str:
    """Fork the nursery of the worker ``me`` before there are threads; or why not: '' if none is wanted."""
    app = worker.app
    settings = plugin_of(app).settings
    if settings.trial != "cell" or settings.observe_only:
        return ""
    if sys.platform != "linux":
        return "this is not Linux"
    if not hooks.fits(hooks.Area.CELLS):
        return "billiard is not as it was read"
    if not worker.pool_cls.__module__.startswith("celery.concurrency."):
        return "this pool is not one of Celery's own"
    # A test's worker is made in the main thread, and started in another one.
    if _thread.get_native_id() != os.getpid() or not isinstance(worker, Program):
        return "this worker is a thread of another program"
    try:
        if not pool.contained or not (has := unshareable()):
            return Nursery.forked(app, me)
        logger.warning("celery_poison: cells load the app anew: this worker has %s before any task", has)
        return Nursery.loaded(me, has, pool.name if real_thread_starter() is not None else "")
    except Exception as error:  # tasks run without it
        return f"no process can be forked: {error!r}"


def _check_hooks() -> None:
    """Say what is not as it was read in this Celery, and what follows from that.

    Raises:
        ConfigurationError: no task can be guarded with it.
    """
    for misfit in hooks.misfits_so_far():
        if misfit.part is hooks.Area.GUARD:
            raise ConfigurationError(str(misfit))
        if misfit not in _warned:
            _warned.add(misfit)
            logger.warning("celery_poison: %s", misfit)


def _check_start_method(worker: Any, pool: PoolFacts) -> None:
    """Refuse the ``worker_pool_start_method`` that Celery 5.7 brought beside the fork.

    A pool process gets by the fork what it records with. Without, guarded tasks would run as unguarded ones.

    Raises:
        ConfigurationError: processes are to be spawned.
    """
    method = getattr(worker, "pool_start_method", "fork")
    if method != "fork" and not pool.contained:
        raise ConfigurationError(
            f"worker_pool_start_method={method!r}: only forked pool processes can guard tasks: set it"
            " to 'fork', or use another pool"
        )


def _facts_of(worker: Any) -> PoolFacts:
    pool = worker.pool_cls
    # By name, since the modules of other pools are not imported here: see hooks.py.
    theirs = [kind.__module__ for kind in pool.mro() if kind.__module__.startswith("celery.concurrency.")]
    name = theirs[0].rpartition(".")[2] if theirs else ""
    return PoolFacts(
        name,
        slots=worker.concurrency,
        contained=name != "prefork",
        soft=worker.soft_time_limit,
        hard=worker.time_limit,
        ready=float(worker.app.conf.worker_proc_alive_timeout or 0),
    )


def _stand_around(app: Any) -> None:
    """Make the classes of tasks and requests ours as well, also of what was made since the worker began.

    Raises:
        ConfigurationError: a task cannot be guarded.
    """
    surround(app)
    combine(app)


def _update_strategies(app: Any, update: Callable[[], object]) -> None:
    _stand_around(app)
    update()


class GuardStep(bootsteps.ConsumerStep):
    """Puts admission and dispatcher into a consumer, and starts the threads once the pool has forked."""

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        life: Life | None = consumer.controller.poison
        if life is None:
            self.enabled = False
            return
        try:
            _check_hooks()
            _stand_around(consumer.app)
        except PoisonError as error:
            sys.exit(f"celery_poison: {error}")
        self._life = life
        ours = self._worker = life.worker
        ours.loop.clock.follow(consumer)
        self._dispatcher = ours.road.follow(consumer, ours.dispatcher)
        ours.unprocessable.hook_into(consumer)
        ours.leaving.follow(consumer)
        update = consumer.update_strategies
        consumer.update_strategies = partial(_update_strategies, consumer.app, update)

    def get_consumers(self, channel: Any) -> list[Any]:
        return []

    def start(self, consumer: Any) -> None:
        self._life.start(consumer)

    def stop(self, consumer: Any) -> None:
        if consumer.blueprint.state == bootsteps.RUN:  # its connection is lost; else the worker leaves
            self._worker.rejoin.away()
            self._worker.loop.clock.away()
        else:
            self._worker.loop.clock.left()
        self._dispatcher.clear()

    def shutdown(self, consumer: Any) -> None:
        self._dispatcher.clear()
        self._life.leave()

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        self._worker.loop.register(hub)
