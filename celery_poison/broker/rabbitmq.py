"""What RabbitMQ does otherwise from one version on."""

from __future__ import annotations

import re
from typing import Any


def version_of(connection: Any) -> tuple[int, int]:
    """Return the version of the RabbitMQ behind an open connection of amqp's; (0, 0) of another broker."""
    server = getattr(connection, "server_properties", None) or {}
    numbers = re.match(r"(\d+)\.(\d+)", str(server.get("version")))
    if server.get("product") != "RabbitMQ" or numbers is None:
        return 0, 0
    return int(numbers[1]), int(numbers[2])


def counts_no_nack(version: tuple[int, int]) -> bool:
    """Whether quorum queues count a reject, but no `basic.nack`, towards their delivery limit."""
    return version >= (4, 3)


def has_fixed_prefetch(version: tuple[int, int]) -> bool:
    """Whether the prefetch of a consumer stays as it was when it began, on classic queues, too."""
    return version >= (4, 0)
