"""Makes one of a task's own Request class and ours: its methods are called as without us, and so are ours."""

from __future__ import annotations

from functools import cache
from typing import Any

from celery import Celery
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request

from celery_poison.errors import ConfigurationError
from celery_poison.task import PoisonTask
from celery_poison.worker.request import GuardedRequest
from celery_poison.worker.sending import SentRequest


class _Front:
    """Stands before the user's class, which stands before ours, and calls ours if the user's does not."""

    # Celery's own class for each task overrides these two, so that a user's are never called.
    execute_using_pool = SentRequest.execute_using_pool
    on_success = GuardedRequest.on_success

    def __init__(self: Any, message: Any, **options: Any) -> None:
        super().__init__(message, **options)  # type: ignore[call-arg]
        if "needs" not in vars(self):
            SentRequest.equip(self)

    def on_failure(self: Any, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        self.has_heard = False
        try:
            return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]
        finally:
            if not self.has_heard:
                GuardedRequest.on_failure(self, exc_info, *args, **kwargs)

    def on_timeout(self: Any, soft: bool, timeout: float) -> None:
        self.has_heard = False
        try:
            super().on_timeout(soft, timeout)  # type: ignore[misc]
        finally:
            if not self.has_heard:
                GuardedRequest.on_timeout(self, soft, timeout)

    def acknowledge(self: Any) -> None:
        if not self.is_kept:
            super().acknowledge()  # type: ignore[misc]

    def reject(self: Any, requeue: bool = False) -> None:
        if not self.is_kept:
            super().reject(requeue=requeue)  # type: ignore[misc]


def combine(app: Celery) -> None:
    """Give every guarded task of ``app`` that has a Request class of its own one that is guarded, too.

    Raises:
        ConfigurationError: there is no way to combine them.
    """
    for name, task in list(app.tasks.items()):
        if isinstance(task, PoisonTask):
            kind: Any = type(task)
            own = symbol_by_name(kind.Request)
            try:
                kind.Request = own if own is GuardedRequest else _combined(own)
            except ConfigurationError as error:
                raise ConfigurationError(f"task {name!r}: its Request class {error}") from None


@cache
def _combined(own: Any) -> type[Request]:
    if not (isinstance(own, type) and issubclass(own, Request)):
        raise ConfigurationError(
            f"{own!r} is not derived from celery.worker.request.Request, so that it cannot be guarded"
        )
    if issubclass(own, _Front):
        return own
    if (
        taken := sorted(_names(own, Request) & _names(GuardedRequest, Request))
        if not issubclass(own, GuardedRequest)
        else []
    ):
        raise ConfigurationError(
            f"{own.__module__}.{own.__qualname__} defines {', '.join(taken)}, which guarded requests need:"
            " rename it"
        )
    try:
        return type(own.__name__, (_Front, own, GuardedRequest), {"__module__": own.__module__})
    except TypeError as error:
        raise ConfigurationError(f"{own.__qualname__} cannot be combined with ours: {error}") from None


def _names(kind: type, base: type) -> set[str]:
    """Return the names that ``kind`` defines and ``base`` does not know."""
    kinds = (parent for parent in kind.__mro__ if not issubclass(base, parent))
    return {name for parent in kinds for name in vars(parent) if not name.startswith("__")} - {*dir(base)}
