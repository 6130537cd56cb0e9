"""Signals of the plugin; receivers get keyword arguments only, and may not stop anything by raising.

Sent in the process that noticed: a worker's main process for what it judged, the active monitor's for
workers and what they were running, the operator's own for released and failed messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.utils.dispatch import Signal

from celery_poison.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_poison.ledger.listening import Listener

_MESSAGE = {"message"}
_WORKER = {"worker", "incident"}
_NOTIFICATION = {"v", "kind", "text", "app", "namespace", "group", "task", "cause", "source", "count"}
_EXAMPLE = {"before", "oldest", "id", "arguments", "command", "links"}

message_candidate: Any = Signal(name="message_candidate", providing_args=_MESSAGE | {"cause"})
message_quarantined: Any = Signal(name="message_quarantined", providing_args=_MESSAGE | {"cause", "reason"})
message_released: Any = Signal(name="message_released", providing_args=_MESSAGE | {"actor", "note"})
message_failed: Any = Signal(name="message_failed", providing_args=_MESSAGE | {"actor", "note"})
worker_lost: Any = Signal(name="worker_lost", providing_args=_WORKER | {"cause", "how"})
failover_started: Any = Signal(name="failover_started", providing_args=_WORKER)
failover_finished: Any = Signal(
    name="failover_finished", providing_args=_WORKER | {"put_back", "flagged", "returned"}
)
monitor_changed: Any = Signal(name="monitor_changed", providing_args={"worker", "fence"})
fleet_gate_closed: Any = Signal(name="fleet_gate_closed", providing_args=_WORKER | {"deaths", "fleet"})
fleet_gate_lifted: Any = Signal(name="fleet_gate_lifted", providing_args={"actor", "note"})
group_quarantined: Any = Signal(name="group_quarantined", providing_args=_NOTIFICATION | _EXAMPLE)
endpoint_suspended: Any = Signal(name="endpoint_suspended", providing_args={"worker", "queue", "reason"})
endpoint_resumed: Any = Signal(name="endpoint_resumed", providing_args={"worker", "queue"})
queue_blocked: Any = Signal(name="queue_blocked", providing_args={"queue", "cause"})
queue_unblocked: Any = Signal(name="queue_unblocked", providing_args={"queue"})
queue_filling: Any = Signal(name="queue_filling", providing_args={"queue", "waiting", "limit"})

#: What :func:`listen` brings to another process than the monitor's.
_OF_A_FAILOVER = {
    each.name: each for each in (worker_lost, failover_started, failover_finished, monitor_changed)
}


def listen(app: Celery) -> Listener:
    """Send signals of deaths and failovers in this process, which only publishes, until ``stop()`` (EMS-5).

    Sends ``worker_lost``, ``failover_started``, ``failover_finished`` and ``monitor_changed``, with the
    arguments that they have elsewhere, in a daemon thread that looks at the ledger once a second. It waits
    for a Redis that is away, and then catches up. Call it in each process, after any fork; not in a worker,
    which would report its own monitor's acts twice.

    Returns:
        a context manager that stops at its end; it has begun already.

    Raises:
        ConfigurationError: celery_poison is not installed on ``app``, or its ledger's URL is wrong.
    """
    # Here: those who do not ask for it pay nothing.
    from celery_poison.ledger.listening import Listener

    plugin = vars(app).get("_poison")
    if plugin is None:
        raise ConfigurationError(
            "signals.listen(app): celery_poison is not installed on this app: put @guarded on a task, or call"
            " install(app) before"
        )
    listener = Listener(
        plugin.open_ledger(), lambda name, facts: _OF_A_FAILOVER[name].send(sender=None, **facts)
    )
    return listener.start()
