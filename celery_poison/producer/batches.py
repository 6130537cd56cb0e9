"""A group, or the header of a chord, is published as a whole or not at all (MSG-6).

Celery publishes the messages of a group one by one, and tells nobody how many there will be. So the two
methods that begin it, which belong to no app, look first; for an app without limits they are what they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from typing import Any, Protocol

from celery import Celery
from celery.canvas import _chain, _chord, group, maybe_signature

from celery_poison import hooks
from celery_poison.producer.capture import captured_by, exempt, is_exempt_here
from celery_poison.producer.limits import Limits, flush


class Host(Protocol):
    """What is asked of the plugin of an app."""

    limits: Limits

    def stores(self, task: str, asked: bool | None) -> bool:
        """Whether messages of this task go to the outbox."""
        ...


#: Returns the plugin of an app; None where there is none.
Find = Callable[[Celery], Host | None]


def watch(find: Find) -> None:
    """Have groups and chords look for room first; done once in a process."""
    if getattr(group.apply_async, "looks", False) or not hooks.fits(hooks.Part.OUTBOX):
        return
    publish, run = group.apply_async, _chord.run

    @wraps(publish)
    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        return _whole(find(self.app), self.app, [self], options, partial(publish, self, *args, **options))

    @wraps(run)
    def run_chord(self: Any, header: Any, body: Any, *args: Any, **options: Any) -> Any:
        app = options.get("app") or self.app
        return _whole(find(app), app, [header], options, partial(run, self, header, body, *args, **options))

    apply_async.looks = True  # type: ignore[attr-defined]
    group.apply_async, _chord.run = apply_async, run_chord


def _whole(
    host: Host | None,
    app: Celery,
    signatures: Iterable[Any],
    options: Mapping[str, Any],
    publish: Callable[[], Any],
) -> Any:
    """Publish what there is room for.

    Raises:
        QueueFull: there is none for all of it; nothing was sent.
    """
    if host is None or not host.limits.are_set() or captured_by.get() or is_exempt_here(app):
        return publish()
    if app.conf.task_always_eager:
        return publish()
    wanted = Counter[str]()
    for signature in _first_ones(signatures, app):
        wanted.update(_queues(host, app, signature, options))
    if any(host.limits.limit(queue) for queue in wanted):
        with app.producer_or_acquire(options.get("producer")) as producer:
            host.limits.take(producer.connection, wanted, partial(flush, producer))
    with exempt():
        return publish()


def _first_ones(signatures: Iterable[Any], app: Celery) -> Iterator[Any]:
    """Yield those that are published at once."""
    for each in signatures:
        signature = maybe_signature(each, app=app)
        if isinstance(signature, group):
            yield from _first_ones(signature.tasks, app)
        elif isinstance(signature, _chord):
            header = signature.tasks
            yield from _first_ones(header.tasks if isinstance(header, group) else header, app)
        elif isinstance(signature, _chain):
            yield from _first_ones(signature.tasks[:1], app)
        else:
            yield signature


def _queues(host: Host, app: Celery, signature: Any, options: Mapping[str, Any]) -> Iterable[str]:
    given = {**signature.options, **options}
    if host.stores(signature.task, given.get("outbox")):
        return []
    task = app._tasks.get(signature.task)
    given = {**(task._get_exec_options() if task else {}), **given}
    address = {name: given[name] for name in _ADDRESS if given.get(name) is not None}
    routed = app.amqp.router.route(address, signature.task, signature.args, signature.kwargs, task)
    return host.limits.queues_of(routed)


#: Options that say where a message goes.
_ADDRESS = ("queue", "exchange", "exchange_type", "routing_key")
