"""Settings of error transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from celery_poison.settings import Section, setting


def _check_error_transaction(value: Any) -> str | None:
    # A signature is a dictionary, too; it names its task.
    single = value is None or isinstance(value, str) or (isinstance(value, Mapping) and "task" in value)
    if single or (isinstance(value, Mapping) and not any(map(_check_error_transaction, value.values()))):
        return None
    return "use a signature, the name of a task, or a mapping of queue names (or '*') to these"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTransactionsSettings(Section):
    """Of error transactions."""

    task_options: ClassVar[tuple[str, ...]] = ("on_send_failed", "on_rollback", "on_quarantine", "on_discard")

    on_send_failed: Mapping[str, Any] | str | None = setting(
        None,
        _check_error_transaction,
        "Error transaction: a message could not be sent. A signature, or a task's name.",
    )
    on_rollback: Mapping[str, Any] | str | None = setting(
        None,
        _check_error_transaction,
        "Error transaction: an attempt of a task ended without success, and without a retry.",
    )
    on_quarantine: Mapping[str, Any] | str | None = setting(
        None, _check_error_transaction, "Error transaction: a message was quarantined."
    )
    on_discard: Mapping[str, Any] | str | None = setting(
        None,
        _check_error_transaction,
        "Error transaction: a message was discarded, by its task or by a person.",
    )

    @property
    def keeps_attempts(self) -> bool:
        return self.on_rollback is not None


SETTINGS = ErrorTransactionsSettings
