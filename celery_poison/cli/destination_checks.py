"""What ``doctor`` asks the broker: may this user write to each named exception destination (WAS-4)?

Nothing is published, declared or pushed: a broker looks at rights before anything else, so each question is
one that it must refuse for another reason, or forgets, once the rights are there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress

from celery_poison.basics.parts import Finding
from celery_poison.basics.text import some_of
from celery_poison.broker.bounds import bounded_connection
from celery_poison.broker.kinds import broker_of
from celery_poison.plugin import Plugin
from celery_poison.rules.destinations import named_in


def destinations(plugin: Plugin) -> Iterator[Finding]:
    """Yield one finding for each queue that some setting, task or queue names as its destination."""
    named = _named(plugin)
    if not named:
        return
    words = {queue: f"queue {queue} ({some_of(sources)})" for queue, sources in named.items()}
    with suppress(Exception), bounded_connection(plugin.app) as connection:  # broken is a finding already
        yield from broker_of(connection).may_write(plugin.app, connection, words)


def _named(plugin: Plugin) -> Mapping[str, list[str]]:
    """Return the destinations that are queues, each with what names it."""
    settings, queues = plugin.settings, defaultdict[str, list[str]](list)
    everywhere = named_in(settings.exception_destination)
    for queue in everywhere:
        queues[queue].append("poison_exception_destination")
    for queue, options in (settings.queues or {}).items():
        for name in named_in(options.get("exception_destination")):
            queues[name].append(f"poison_queues[{queue!r}]")
    with suppress(Exception):  # whatever the user's modules raise: a finding already
        for task, (policy, _) in sorted(plugin.policies.items()):
            for each in (policy, *policy.by_queue.values()):
                for name in named_in(each.exception_destination) - everywhere:
                    if f"task {task}" not in queues[name]:
                        queues[name].append(f"task {task}")
    return dict(sorted(queues.items()))
