"""The outbox (TP1-1 to TP1-9): what is published is stored in the caller's call, and sent by a relay.

``storing`` stores a message that Celery's own publish hands over (``broker.capture``), ``packing`` in the
form that ``lanes`` keeps in the ledger. In a worker, or in ``celery poison outbox run``, ``relay`` takes
what is due, ``handover`` brings it to the broker, ``send_failures`` says what is done about each way to fail.
``tied`` holds back what leaves with the success of a task.

What is published in a transaction of the user's database (``sessions``, Django) waits there (``database``)
until it is committed, and is moved into the outbox then. ``desk`` is for people and for what status says,
``verbs`` for their command line.
"""

from __future__ import annotations

from typing import Any

from celery_poison.extensions.outbox.storing import Outbox


def outbox_of(host: Any) -> Outbox | None:
    """Return the outbox of an app's plugin; None where this extension was left out."""
    return next((each for each in host.extensions.all if isinstance(each, Outbox)), None)


#: Keys of its own in the ledger -> what names one of several, as docs/keys.md has it.
KEYS = dict.fromkeys(
    (
        *("outbox_lanes", "outbox_blocked", "outbox_failed"),
        *("outbox_mover", "outbox_moved", "outbox_rows"),
    ),
    "",
)
EXTENSION = Outbox
