"""The rows of the outbox, and what permissions of Django are named for."""

from __future__ import annotations

from django.db import models

#: Who may read, and who may act.
READ, ACT = "celery_poison.view_poisonmessage", "celery_poison.act_poisonmessage"


class OutboxRow(models.Model):
    """One message that was published in a transaction; a relay moves it into the ledger, and deletes it.

    The table is the same with SQLAlchemy: ``celery_poison.outbox.outbox_table``.

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


class _NoRows(models.Manager["PoisonMessage"]):
    """Give commands that go over all models, as ``dumpdata`` does, no rows: there is no table."""

    def get_queryset(self) -> models.QuerySet[PoisonMessage]:
        return super().get_queryset().none()


class PoisonMessage(models.Model):
    """A message in quarantine, for Django's permissions and admin alone: the ledger has it, and no table."""

    objects = _NoRows()

    class Meta:
        base_manager_name = "objects"
        managed = False
        verbose_name = "poison message"
        default_permissions = ("view",)
        permissions = (("act_poisonmessage", "Can release, fail and edit poison messages"),)
