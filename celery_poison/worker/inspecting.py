"""``celery inspect poison_…``: one worker's own state. Read only, without Redis.

Imported by workers, and by every ``celery`` command, which refuses unknown ones. A worker answers on its
event loop, from memory, with a limited number of messages. No arguments, no URLs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker.control import inspect_command, nok
from celery.worker.state import reserved_requests

from celery_poison.plugin import plugin_of

#: Most messages in an answer.
MOST = 100

_LIMIT: dict[str, Any] = {"signature": f"[N={MOST}]", "args": [("limit", int)]}


@inspect_command()
def poison_status(state: Any, **_: Any) -> Any:
    """Return the data of the worker's heartbeats, and the version of its overrides."""
    life, plugin = getattr(state.consumer.controller, "poison", None), plugin_of(state.app)
    if life is None:
        return nok("this worker guards nothing: celery_poison was installed too late, or not at all")
    ours = life.worker
    told = ours.heartbeat.payload.now()
    return {
        **{name: value for name, value in told.items() if name != "vitals"},
        "worker": ours.heartbeat.site.me.worker,
        "watches": ours.monitor.is_active,
        "policy_version": plugin.policy_overrides.version,
    }


@inspect_command(**_LIMIT)
def poison_running(state: Any, limit: int = MOST, **_: Any) -> list[dict[str, Any]]:
    """Guarded messages that run, or were handed to the pool to run."""
    return _told(lambda request: request.stage.value != "waiting", limit)


@inspect_command(**_LIMIT)
def poison_candidates(state: Any, limit: int = MOST, **_: Any) -> list[dict[str, Any]]:
    """Candidates that the worker has in its hands: they wait for their trial, or run alone."""
    return _told(lambda request: request.poison is not None and request.poison.history.candidate, limit)


def _told(wanted: Callable[[Any], bool], limit: int) -> list[dict[str, Any]]:
    guarded: list[Any] = [request for request in [*reserved_requests] if hasattr(request, "needs")]
    chosen = [request for request in guarded if wanted(request)]
    return [_message(request) for request in chosen[: max(0, min(limit, MOST))]]


def _message(request: Any) -> dict[str, Any]:
    history = request.poison.history if request.poison is not None else None
    return {
        "id": request.id,
        "task": request.name,
        "queue": request.consumed_from,
        "stage": request.stage.value,
        "alone": request.runs_alone,
        "pid": request.worker_pid,
        "started_at": request.time_start,
        "candidate": history is not None and history.candidate,
        "crashes": history.crashes if history is not None else 0,
        "strikes": history.strikes if history is not None else 0,
    }
