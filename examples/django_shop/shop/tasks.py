from celery import shared_task

from celery_poison import guarded
from shop.models import Order, Payment


@guarded
@shared_task
def charge(order_id: int) -> None:
    """Note that it ran, and whether the order was there."""
    is_there = Order.objects.filter(pk=order_id).exists()
    Payment.objects.create(order_number=order_id, order_was_there=is_there)
