"""Settings of idempotency keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from celery_poison.rules import values
from celery_poison.settings import Section, seconds, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceSettings(Section):
    """Of idempotency keys."""

    task_options: ClassVar[tuple[str, ...]] = ("idempotency_key", "idempotency_window")

    idempotency_key: Callable[..., Any] | None = setting(  # noqa: RUF009 - a field, like the others
        None,
        values.function,
        "Function of the task's arguments that names the effect: a second message with an equal key has no"
        " effect. None: no key.",
    )
    idempotency_window: float = seconds(
        86_400.0, 1, "How long a key counts after the first task with it has returned."
    )


SETTINGS = OnceSettings
