"""``celery poison monitor --trials``: a worker that consumes no queue, for fleets whose workers all died."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from celery import Celery

from celery_poison.ledger import connection, meta
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.owner import identity_of


def why_it_tries_nothing(app: Celery) -> str:
    """Return why a standby of this app could try no suspect; empty if it can.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    settings = plugin_of(app).settings
    if settings.observe_only:
        return "poison_observe_only is set: nothing is tried"
    if settings.trial != "cell":
        return f"poison_trial is {settings.trial!r}: only with 'cell' are suspects tried beside a monitor"
    with app.connection_for_read() as broker:
        if broker.transport.driver_type != "redis":
            return "only with Redis can a monitor keep messages: other brokers put them back by themselves"
    return ""


def run(app: Celery, tell: Callable[[str], object]) -> int:
    """Watch, and try what nobody else can try, until SIGTERM or Ctrl-C; return the exit status.

    Args:
        tell: is told the name of the monitor before it begins.

    Raises:
        ConfigurationError: a setting is wrong, or the ledger belongs to another app.
        LedgerUnavailable: Redis is away at the start; later it is waited for.
    """
    plugin = plugin_of(app)
    ledger = plugin.open_ledger()
    connection.check_server(ledger.client)  # the worker would begin all the same
    meta.enroll(ledger.client, ledger.keys, **identity_of(app))
    plugin.is_standby = True
    _consume_nothing(app)
    worker = app.Worker(
        hostname=f"monitor-{os.getpid()}@{socket.gethostname()}",
        pool_cls="prefork",  # in which nothing runs but what can be tried in no cell
        concurrency=1,
        loglevel="WARNING",
        quiet=True,
        redirect_stdouts=False,
        without_gossip=True,
        without_mingle=True,
    )
    tell(plugin.runtime.identity()[0])
    worker.start()
    return int(worker.exitcode or 0)


def _consume_nothing(app: Celery) -> None:
    app.conf.worker_direct = False
    queues = app.amqp.queues
    first = list(queues)[:1]
    queues.select(first)
    queues.deselect(first)
