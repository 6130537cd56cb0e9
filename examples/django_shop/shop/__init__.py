"""A Django shop: an order and the message that charges for it are committed together, or neither is.

Beside a Redis of your own, in the directory above, each command in a terminal of its own:

    python manage.py migrate
    celery -A shop worker --concurrency 2
    python manage.py place_orders --count 1000
    celery -A shop poison outbox status

Stop the broker while orders come in, start it again, and count: `python manage.py place_orders --count 0`.
Broker and ledger are a local Redis, unless SHOP_BROKER and SHOP_LEDGER say otherwise.
"""

from shop.celery import app as celery_app

__all__ = ["celery_app"]
