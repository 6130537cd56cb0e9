"""Orders, and what was paid for them."""

from django.db import models


class Order(models.Model):
    item = models.TextField()


class Payment(models.Model):
    """One run of `charge`. Its order is told by number: the database does not see to it that there is one."""

    order_number = models.BigIntegerField(db_index=True)
    order_was_there = models.BooleanField()
