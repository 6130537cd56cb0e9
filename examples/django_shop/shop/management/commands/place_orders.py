"""Place orders, one transaction each, and count what became of them."""

from __future__ import annotations

import json
import random
import signal
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from shop.models import Order, Payment
from shop.tasks import charge


class SoldOut(Exception):
    """It is noticed last of all, when the message has been published already."""


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--count", type=int, default=0, help="orders to place; -1: until SIGTERM")
        parser.add_argument("--every", type=float, default=0.02, help="seconds between two, on average")

    def handle(self, *, count: int, every: float, **_: Any) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        self._is_stopping = False
        placed = sold_out = 0
        slowest = 0.0
        while placed + sold_out != count and not self._is_stopping:
            began = time.monotonic()
            try:
                place("a book")
                placed += 1
            except SoldOut:
                sold_out += 1
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(random.random() * 2 * every)
        told = {"placed": placed, "sold_out": sold_out, "slowest_ms": round(slowest * 1000)}
        self.stdout.write(json.dumps({**told, "in_the_database": totals()}))

    def _stop(self, *_: object) -> None:
        self._is_stopping = True


def place(item: str) -> None:
    """Place one order. One in ten is sold out: neither it nor its message may be seen by anybody.

    Raises:
        SoldOut: nothing was done.
    """
    with transaction.atomic():
        order = Order.objects.create(item=item)
        charge.delay(order.pk)
        if random.random() < 0.1:
            raise SoldOut


def totals() -> dict[str, int]:
    """Return how many orders there are, and what is amiss."""
    orders = {*Order.objects.values_list("pk", flat=True)}
    payments = [*Payment.objects.values_list("order_number", "order_was_there")]
    paid = {number for number, _ in payments}
    return {
        "orders": len(orders),
        "payments": len(payments),
        "orders_without_message": len(orders - paid),
        "messages_without_order": sum(not was_there for _, was_there in payments),
        "charged_again": len(payments) - len(paid),
    }
