"""Settings of the outbox."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from celery_poison.settings import Section, flag, seconds, setting, whole


def _check_database(value: Any) -> str | None:
    good = value is None or (isinstance(value, str) and (value.split(":")[0] == "django" or "://" in value))
    return None if good else "use 'django', 'django:ALIAS', a database URL of SQLAlchemy, or None"


def _check_names_or_flag(value: Any) -> str | None:
    names = isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(v, str) and v for v in value)
    return None if names or isinstance(value, bool) else "use True, False or a list of names of queues"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings(Section):
    """Of the outbox."""

    task_options: ClassVar[tuple[str, ...]] = ("transactional_publish", "outbox")

    transactional_publish: bool = flag("Send the messages of a task only when it has succeeded.")
    outbox: bool = flag(
        "Store messages for guarded tasks in the ledger first; a relay in the workers sends them."
    )
    outbox_database: str | None = setting(
        None,
        _check_database,
        "Your own database, in whose transactions messages are stored first: 'django', 'django:ALIAS', or"
        " a URL of SQLAlchemy.",
        secret=True,
    )
    outbox_timeout: float = seconds(
        3.0, 0.1, "How long storing a message may delay its caller before the ledger counts as away."
    )
    outbox_retries: int = whole(
        3,
        0,
        "Times that a message is sent again after a failure that may pass, before that is reported.",
        "retries",
    )
    outbox_retry_interval: float = seconds(1.0, 0, "Pause before each of these.")
    outbox_resend_interval: float = seconds(
        10.0, 0.1, "Pause of that queue after these; then it begins anew."
    )
    outbox_auto_block: bool | Collection[str] = setting(
        False,
        _check_names_or_flag,
        "Block sending also after a failure that may pass, until a person unblocks it: True, or a list of"
        " queues.",
    )

    @property
    def publish_timeout(self) -> float:
        return self.outbox_timeout


SETTINGS = OutboxSettings
