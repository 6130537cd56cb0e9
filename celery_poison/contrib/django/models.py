"""The rows of the outbox. The table is the same with SQLAlchemy: ``celery_poison.outbox.outbox_table``."""

from __future__ import annotations

from django.db import models


class OutboxRow(models.Model):
    """One message that was published in a transaction; a relay moves it into the ledger, and deletes it.

    Attributes:
        uid: of this row, and of no other ever.
        lane: its destination.
        packed: the message, see docs/keys.md.
    """

    uid = models.CharField(max_length=32)
    lane = models.TextField()
    packed = models.BinaryField()

    class Meta:
        db_table = "celery_poison_outbox"
