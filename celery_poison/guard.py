"""The decorator, and the plugin's installation: both turn tasks of an app into guarded ones.

``guarded`` marks functions and tasks; marked tasks are guarded when they are bound.

A lazy task or a shared-task proxy is never evaluated here: that would bind it to the wrong app. A mark
is left on the function instead, and read when an app makes a task of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeVar, overload

from celery import Celery, _state
from celery.app.task import Task
from celery.local import PromiseProxy, Proxy
from celery.utils.log import get_logger

from celery_poison.errors import ConfigurationError
from celery_poison.plugin import Plugin, installed_on, plugin_of
from celery_poison.policy import check_options
from celery_poison.rules.destinations import Destination
from celery_poison.settings import Settings
from celery_poison.task import PoisonTask
from celery_poison.upstream.acks import own_acks_of, refuse_early_ack

T = TypeVar("T", bound=Callable[..., Any])

logger = get_logger("celery_poison")

_MARK = "__poison__"
#: Celery's own tasks that call others in the same process, and where requests find which those are.
CARRIERS = ("celery.map", "celery.starmap", "celery.chunks")
_CARRIES = "celery_poison.worker.carriers:CarrierRequest"
#: Celery's own, and no policy: beside the others since a hang leaves no trace without it.
_ACKS = "acks_on_timeout"


@overload
def guarded(task: T, /) -> T: ...
@overload
def guarded(
    *,
    max_crashes: int = ...,
    max_failures: int = ...,
    max_payload_bytes: int | None = ...,
    fingerprint: Callable[..., Any] | None = ...,
    block_fingerprint_after: int | None = ...,
    keep_failures: bool = ...,
    ignore: Collection[type[Exception] | str] = ...,
    convict_at_once: Collection[type[Exception] | str] = ...,
    rerun: bool = ...,
    exception_destination: Destination = ...,
    blocked_retry_timeout: float = ...,
    transactional_publish: bool = ...,
    outbox: bool = ...,
    idempotency_key: Callable[..., Any] | None = ...,
    idempotency_window: float = ...,
    on_send_failed: Any = ...,
    on_rollback: Any = ...,
    on_quarantine: Any = ...,
    on_discard: Any = ...,
    tell: Literal["decision", "conviction"] = ...,
    acks_on_timeout: bool = ...,
) -> Callable[[T], T]: ...
def guarded(task: Any = None, /, **options: Any) -> Any:
    """Guard a task: ``@guarded`` or ``@guarded(max_crashes=2)``, above or below ``@app.task``.

    A guarded task acknowledges late and is put back when its worker is lost; a message of it that
    keeps killing is quarantined. The plugin is installed on the task's app by itself.

    An option that is left out is as the setting of its name says, ``poison_max_crashes`` for example; the
    defaults given here are those of the settings.

    Args:
        max_crashes: deaths before quarantine; default 2 (SAP-3).
        max_failures: times a message may be put back before quarantine; default 5 (WAS-3).
        max_payload_bytes: largest body accepted, in bytes as received; default None: no limit (SAP-6).
        fingerprint: function of the task's arguments that returns the key by which messages count as equal;
            default: all arguments (NEW-3).
        block_fingerprint_after: convictions of one fingerprint after which new messages with it are
            quarantined on arrival; default None: never (NEW-3).
        keep_failures: keep in quarantine what failed with an exception; default False (NEW-10).
        ignore: exceptions that ``keep_failures`` leaves alone: classes, or their dotted names; default none.
        convict_at_once: exceptions that quarantine a message without a retry, also without
            ``keep_failures``: classes, or their dotted names; default none.
        rerun: False: a message that began and was cut off, by whatever death, is quarantined at once and
            never runs again by itself; default True (NEW-16).
        tell: when a caller gets the failure of a message that goes to quarantine: ``"decision"`` (default),
            once a person fails it, or ``"conviction"``, at once; the message stays (NEW-17).
        idempotency_key: function of the task's arguments: a second message with the same key has no second
            effect; default None: none has a key (NEW-12).
        idempotency_window: seconds for which a key counts after its task has returned; default 86400.
        exception_destination: where poison goes: ``"system"`` (default), the name of a queue, None (it stays
            in its queue), or a mapping of causes to these (WAS-4).
        blocked_retry_timeout: where that is None: seconds before the next delivery, 0 at once, -1 not before
            a person releases it; default 5 (WAS-5).
        transactional_publish: what the body publishes leaves only if the task succeeds; default False
            (TP1-9).
        on_send_failed, on_rollback, on_quarantine, on_discard: what is started with a report when a message
            could not be sent, an attempt ended without success, a message was quarantined, or discarded: a
            signature, a task's name, or a mapping of queue names to these; default None: nothing (TP1-3).
        outbox: what is published is stored first, and sent by a relay; default False (TP1-1).
        acks_on_timeout: acknowledge a message whose run is ended by its hard time limit, so that a hang
            leaves nothing but a failed result; default: as Celery's setting says, which is True. With False
            it is put back, counted as a failure, and quarantined after ``max_failures`` of these.

    Raises:
        ConfigurationError: unknown option, impossible value, or ``acks_late=False`` beside it.
    """
    if task is None:
        check_options({name: each for name, each in options.items() if name != _ACKS}, where="guarded()")
        if not isinstance(options.get(_ACKS, True), bool):
            raise ConfigurationError(f"guarded(): {_ACKS} is {options[_ACKS]!r}: write True or False")
        return lambda wrapped: _mark(wrapped, options)
    return _mark(task, options)


def _mark(target: Any, options: Mapping[str, Any]) -> Any:
    _state.connect_on_app_finalize(watch)
    for app in list(_state._get_active_apps()):
        watch(app)
    if type(target) is PromiseProxy:
        given = object.__getattribute__(target, "_Proxy__kwargs")
        refuse_early_ack(given, f"task {given.get('name') or _name_of(target)!r}")
        target.__then__(lambda: _mark_task(target._get_current_object(), options))
    elif type(target) is Proxy:
        _mark_shared(target, options)
    elif isinstance(target, Task):
        _mark_task(target, options)
    elif inspect.isclass(target):
        raise ConfigurationError(
            f"guarded() takes a task or a function, not the class {target.__name__}:"
            " derive the class from celery_poison.PoisonTask instead"
        )
    else:
        setattr(target, _MARK, dict(options))
    return target


def _name_of(proxy: Any) -> str:
    """Return the name of the function of a lazy task, which is not evaluated for this."""
    return str(getattr(object.__getattribute__(proxy, "_Proxy__args")[0], "__name__", "?"))


def _mark_task(task: Any, options: Mapping[str, Any]) -> None:
    _guard_task(task, options)
    install(task.app)


def _mark_shared(proxy: Any, options: Mapping[str, Any]) -> None:
    # Evaluating the proxy would pick the current app; its closure names the function and the name.
    cells = inspect.getclosurevars(object.__getattribute__(proxy, "_Proxy__local")).nonlocals
    function = cells["fun"]
    setattr(function, _MARK, dict(options))
    for app in list(_state._get_active_apps()):
        if app.finalized:
            name = cells["name"] or app.gen_task_name(function.__name__, function.__module__)
            _adopt_if_marked(app, app.tasks[name])


def _guard_task(task: Any, options: Mapping[str, Any], *, keep_acks: bool = False) -> None:
    """Turn a bound task into a guarded one, in place.

    Args:
        options: policy options; become attributes of the task.
        keep_acks: leave its acknowledgement mode alone (``poison_guard_all``).
    """
    kind = type(task)
    own_acks = own_acks_of(task)
    if not isinstance(task, PoisonTask):
        own = {"acks_late": task.acks_late, "reject_on_worker_lost": task.reject_on_worker_lost}
        members = {**own, "__module__": kind.__module__, "__doc__": kind.__doc__, "abstract": True}
        if task.name in CARRIERS and kind.Request == Task.Request:
            members["Request"] = _CARRIES
        task.__class__ = type(kind.__name__, (kind, PoisonTask), members)
    for name, value in options.items():
        setattr(task, name, value)
    type(task).own_acks = own_acks
    type(task).keeps_acks = keep_acks
    if not keep_acks:
        type(task).acks_late = type(task).reject_on_worker_lost = True


def marked(task: Any) -> Mapping[str, Any] | None:
    """Return the options with which the function of ``task`` was marked, or None."""
    options: Mapping[str, Any] | None = getattr(getattr(task, "run", None), _MARK, None)
    return options


# --- apps that the plugin is on ---------------------------------------------------------------------


def install(app: Celery, **settings: Any) -> Plugin:
    """Install celery_poison on ``app``; ``guarded`` does this by itself. Safe to call again.

    Args:
        app: the Celery app.
        **settings: any ``poison_*`` setting; wins over the app's configuration, for example
            ``install(app, poison_guard_all=True)``.

    Raises:
        ConfigurationError: a setting is unknown or impossible.
    """
    if settings:
        Settings.from_conf(settings)
    plugin = plugin_of(app)
    watch(app)
    if settings:
        plugin.override(settings)
    if app.finalized:
        _guard_all(app)
    return plugin


def _guard_all(app: Celery) -> None:
    """Guard the carriers of an app that the plugin is on, and all tasks of one that asks for it."""
    plugin = installed_on(app)
    if plugin is None:
        return
    for name, task in list(app._tasks.items()):
        is_wanted = name in CARRIERS or (plugin.wants_everything and not name.startswith("celery."))
        if isinstance(task, PoisonTask) or not is_wanted:
            continue
        if type(task).Strategy == Task.Strategy:
            _guard_task(task, marked(task) or {}, keep_acks=True)
        else:
            logger.warning("celery_poison: task %s has a Strategy of its own, and is not guarded", name)


# --- apps that make tasks of marked functions ------------------------------------------------------


def watch(app: Celery) -> None:
    """Guard every task that ``app`` makes of a marked function, at the moment it is made."""
    if _MARK in vars(app):
        return
    setattr(app, _MARK, True)
    make = getattr(app, "_task_from_fun", None)

    def make_and_guard(fun: Any, name: str | None = None, **options: Any) -> Any:
        if hasattr(fun, _MARK):
            refuse_early_ack(options, f"task {name or fun.__name__!r}")
        task = make(fun, name=name, **options)  # type: ignore[misc]
        _adopt_if_marked(app, task)
        return task

    if make is not None:  # else tasks are found when the app is finalized
        app._task_from_fun = make_and_guard
    app.on_after_finalize.connect(_scan, weak=False)
    if app.finalized:
        _scan(app)


def _scan(sender: Celery, **_: Any) -> None:
    for task in list(sender._tasks.values()):
        if isinstance(task, PoisonTask):
            task._belongs_to(sender)
        else:
            _adopt_if_marked(sender, task)
    _guard_all(sender)


def _adopt_if_marked(app: Celery, task: Any) -> None:
    options = marked(task)
    if options is not None and not isinstance(task, PoisonTask):
        _guard_task(task, options)
        install(app)


def _watch_if_needed(app: Celery) -> None:
    """Watch an app that is finalized once there are guarded classes: one may keep ``on_bound`` to itself."""
    if PoisonTask.__subclasses__():
        watch(app)
    else:  # its own tasks, made after this is announced, may be the first of such a class
        app.on_after_finalize.connect(_look_again, weak=False)


def _look_again(sender: Celery, **_: Any) -> None:
    if PoisonTask.__subclasses__():
        watch(sender)


_state.connect_on_app_finalize(_watch_if_needed)
