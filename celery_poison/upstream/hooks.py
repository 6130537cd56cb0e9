"""What this package uses of Celery, kombu and billiard without their promise, in one table.

Such a name may go with any release of theirs. So a worker looks the table through before it begins, and
``celery poison doctor`` whenever it is asked: each says what is missing, from which version, what does not
work without it, and the cure. A test holds the table against the code: a private name that is not in here
cannot be used.

A worker looks only at modules that are imported already (:func:`misfits_so_far`): a pool may patch Celery's
tracer before the modules that use it are imported, and an import of ours would come too early for that.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from celery.utils.imports import symbol_by_name

from celery_poison.basics.text import version

#: From which version of each to which this was read and tried (docs/versions.md).
TESTED_VERSIONS: Mapping[str, tuple[str, str]] = {
    "celery": ("5.5", "5.7"),
    "kombu": ("5.5", "5.7"),
    "billiard": ("4.2", "4.3"),
}


class Area(Enum):
    """A part of the plugin that rests on some hooks; the values say what fails with them."""

    GUARD = "no task can be guarded, and the worker does not start"
    REDIS = (
        "messages are received as plain kombu does it, and messages of a killed worker come back only after"
        " the visibility timeout"
    )
    RABBITMQ = "bodies are unpacked before they are judged, and a queue is known by its routing key only"
    EXITS = "how a pool process ended is known by billiard's message only, without memory and stack"
    OUTBOX = "messages are not stored in the outbox first, but sent as by plain Celery"
    RECONNECT = "a task that begins while the broker connection is lost may run twice"
    CELLS = "suspects run alone in their worker's pool, and not beside it"
    PORTRAIT = "that no pool process comes up is not noticed"


#: Whose hooks they are -> the names. In brackets: the arguments with which it is called, or calls.
_Table = Mapping[str, str]

HOOKS: Mapping[Area, _Table] = {
    Area.GUARD: {
        # A guarded request (worker/sending.py, worker/request.py).
        "celery.worker.request:Request": (
            "_app _already_cancelled _already_revoked _apply_result _body _content_encoding _content_type "
            "_context _decoded _delivery_info _message _on_reject _request_dict _task _type time_limits "
            "execute_using_pool(pool) on_accepted(pid,time_accepted) on_success(failed__retval__runtime) "
            "on_failure(exc_info,send_failed_event,return_ok) on_timeout(soft,timeout) acknowledge() "
            "reject(requeue) revoked() cancel(pool,signal) terminate(pool,signal) "
            "_announce_revoked(reason,terminated,signum,expired)"
        ),
        "celery.worker.request": "create_request_cls(base,task,pool,hostname,eventer)",
        # What runs a task in its process (worker/child.py).
        "celery.app.trace": (
            "fast_trace_task(task,uuid,request,body,content_type,content_encoding) "
            "trace_task_ret(name,uuid,request,body,content_type,content_encoding) "
            "setup_worker_optimizations(app,hostname)"
        ),
        # The choke points of a consumer (worker/bootsteps.py, dispatcher.py, threads.py, unprocessable.py).
        "celery.worker.consumer:Consumer": (
            "on_task_request create_task_handler() on_unknown_task(body,message,exc) "
            "on_unknown_message(body,message) on_invalid_task(body,message,exc) "
            "on_decode_error(message,exc) connection_errors channel_errors call_soon(p) timer hub pool "
            "perform_pending_operations()"
        ),
        # Which queue a message of RabbitMQ came from (worker/broadcasts.py).
        "kombu:Consumer": "queues _active_tags",
        "celery.worker.worker:WorkController": "_process_task(req)",
        "celery.worker.state": "active_requests reserved_requests task_ready(request)",
        # Marking functions before any app makes a task of them (guard.py, plugin.py, task.py).
        "celery.app.base:Celery": "_tasks on_after_finalize",
        "celery.app.task:Task": "_get_request() on_bound(app)",
        "celery._state": "_get_active_apps() connect_on_app_finalize(callback)",
        "celery.local:Proxy": "_get_current_object()",
        # Publishing a stored original again (broker/envelope.py, broker/other.py).
        "kombu.transport.virtual:Channel": "_next_delivery_tag() _put(queue,message) _size(queue)",
        "celery.backends.base:KeyValueStoreBackend": "_get_task_meta_for(task_id)",
    },
    Area.REDIS: {
        # broker/redis/receiving.py, delivered.py. kombu loses what it popped if it ends before registering it
        # (celery #4354), takes long tasks from living workers (celery #5935), and ends a worker at a lost
        # connection (kombu #582).
        "kombu.transport.redis:Channel": (
            "_brpop_start(timeout) _brpop_read() _in_poll _queue_cycle _consumers "
            "_basic_cancel(consumer_tag) _tag_to_queue _fanout_queues _connparams(asynchronous) _get_pool() "
            "_q_for_pri(queue,pri) _lookup(exchange,routing_key) _get_message_priority(message,reverse) "
            "basic_consume(queue,no_ack) basic_get(queue) conn_or_acquire()"
        ),
        "kombu.transport.redis:QoS": (
            "_delivered _vrestore_count can_consume() append(message,delivery_tag) ack(delivery_tag) "
            "reject(delivery_tag,requeue) restore_unacked(client) restore_visible(start,num,interval) "
            "pipe_or_acquire()"
        ),
        "kombu.transport.redis": "Empty Mutex(client,name,expire) MutexHeld",
        "kombu.transport.redis:Transport": "_callbacks _deliver(message,queue)",
        "kombu.transport.virtual:Message": "_raw _state",
        "kombu:Connection": "_connection get_transport_cls() drain_events()",
    },
    Area.RABBITMQ: {  # broker/amqp/channel.py
        "kombu.transport.pyamqp:Channel": (
            "Message basic_qos(prefetch_size,prefetch_count,a_global) basic_consume(queue) "
            "basic_ack(delivery_tag) basic_reject(delivery_tag,requeue)"
        ),
        "kombu.transport.pyamqp:Connection": "Channel",
        "kombu.transport.pyamqp:Transport": "Connection",
    },
    Area.OUTBOX: {  # broker/capture.py, extensions/outbox/handover.py
        "celery.app.amqp:AMQP": "_create_task_sender() _event_dispatcher producer_pool send_task_message",
        "celery.app.base:Celery": (
            "on_after_configure configured _tasks producer_or_acquire() "
            "send_task(name,args,kwargs,producer,publisher,connection)"
        ),
        "celery.app.task:Task": "_get_exec_options()",
        "celery.canvas": "_chain _chord",
        "celery.canvas:group": "apply_async()",
        "celery.canvas:_chord": "run(header,body,partial_args)",
        "kombu:Producer": (
            "_publish(body,priority,content_type,content_encoding,headers,properties,routing_key,"
            "mandatory,immediate,exchange,declare)"
        ),
        "kombu.transport.redis:Channel": (
            "_inplace_augment_message(message,exchange,routing_key) _get_message_priority(message,reverse) "
            "_q_for_pri(queue,pri)"
        ),
    },
    Area.EXITS: {  # worker/pool_processes.py
        "billiard.pool:Pool": "_pool _create_worker_process(i) _result_handler",
        "billiard.process:BaseProcess": "_popen",
        "billiard.pool:ResultHandler": "on_state_change",
        "billiard.queues:_SimpleQueue": "_reader",
        "billiard.popen_fork:Popen": "method pid returncode poll(flag)",
    },
    Area.CELLS: {  # cells/cell.py
        "billiard.process:BaseProcess": "_bootstrap()",
    },
    Area.PORTRAIT: {  # worker/self_portrait.py
        "billiard.pool:Pool": "_pool _processes",
        "celery.concurrency.asynpool:AsynPool": "_all_inqueues",
        "celery.concurrency.prefork:TaskPool": "_pool",
        "celery.worker.state": "all_total_count",
    },
    Area.RECONNECT: {  # worker/pool_processes.py
        "celery.concurrency.asynpool:AsynPool": "_fileno_to_outq handle_result_event _cache _sentinel_poll",
        "billiard.pool:ApplyResult": "_accept_callback _accepted ready()",
    },
}


class Misfit(NamedTuple):
    """One hook that does not fit.

    Attributes:
        what: the sentence without what follows from it.
    """

    part: Area
    what: str

    @property
    def cure(self) -> str:
        ranges = ", ".join(
            f"{package} {first} to {last}" for package, (first, last) in TESTED_VERSIONS.items()
        )
        return f"install versions that it was read against: {ranges}; or a newer celery_poison"

    def __str__(self) -> str:
        return f"{self.what}: {self.part.value}; {self.cure}"


def misfits() -> tuple[Misfit, ...]:
    """Return every hook that does not fit what is installed; imports what it looks at."""
    return _misfits_of(_rows())


def misfits_so_far() -> tuple[Misfit, ...]:
    """Return the hooks that do not fit, of modules that this process has imported."""
    return _misfits_of(row for row in _rows() if row.owner.partition(":")[0] in sys.modules)


def fits(part: Area) -> bool:
    """Whether all that is imported of what ``part`` rests on is as it was read."""
    return all(misfit.part is not part for misfit in misfits_so_far())


def installed() -> dict[str, str]:
    """Return the installed version of each package in ``TESTED_VERSIONS``."""
    return {package: version(package) for package in TESTED_VERSIONS}


def untested_versions() -> list[str]:
    """Return the packages whose installed version is outside of what the hooks were read against."""
    problems = []
    for package, (first, last) in TESTED_VERSIONS.items():
        number = _numbers(version(package))
        if number and not _numbers(first) <= number <= _numbers(last):
            problems.append(f"{package} {version(package)}")
    return problems


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


class _Row(NamedTuple):
    part: Area
    owner: str
    names: str


def _rows() -> Iterator[_Row]:
    return (_Row(part, *entry) for part, table in HOOKS.items() for entry in table.items())


def _misfits_of(rows: Iterable[_Row]) -> tuple[Misfit, ...]:
    return tuple(chain.from_iterable(map(_look, rows)))


@cache
def _look(row: _Row) -> tuple[Misfit, ...]:
    package = row.owner.partition(".")[0].partition(":")[0]
    where = f"{package} {version(package)}"
    try:
        owner = symbol_by_name(row.owner)
    except (ImportError, AttributeError):
        return (Misfit(row.part, f"{where} has no {row.owner}"),)
    wrong = filter(None, (_wrong(owner, name) for name in row.names.split()))
    return tuple(Misfit(row.part, f"{where}: {row.owner} {what}") for what in wrong)


def _wrong(owner: Any, hook: str) -> str:
    """Say what does not fit; empty if all does."""
    name, is_called, arguments = hook.rstrip(")").partition("(")
    attribute = inspect.getattr_static(owner, name, None)
    if attribute is None and not is_called:
        return "" if hasattr(owner, name) or _is_set_by_a_method(owner, name) else f"has no {name}"
    if attribute is None:
        return f"has no {name}"
    words = [word for word in arguments.split(",") if word]
    return _misfit_of_call(getattr(owner, name), name, words) if is_called else ""


def _is_set_by_a_method(owner: Any, name: str) -> bool:
    """Whether instances have it: a class itself does not show what its methods set."""
    kinds = inspect.getmro(owner) if isinstance(owner, type) else ()
    codes = (getattr(value, "__code__", None) for kind in kinds for value in vars(kind).values())
    return any(name in code.co_names for code in codes if code)


def _misfit_of_call(function: Any, name: str, arguments: list[str]) -> str:
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("self", None)
    kinds = {parameter.kind for parameter in parameters.values()}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds or inspect.Parameter.VAR_POSITIONAL in kinds
    if missing := [word for word in arguments if word not in parameters and not takes_any]:
        return f"{name} does not know {', '.join(missing)}"
    needed = [
        word
        for word, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and word not in arguments
    ]
    return f"{name} wants {', '.join(needed)} too" if needed else ""
