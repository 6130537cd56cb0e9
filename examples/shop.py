"""A small shop: two tasks that work, one that kills its pool process, one that kills its whole worker.

Run it beside a Redis of your own, in this directory, each command in a terminal of its own:

    celery -A shop worker --concurrency 2
    python shop.py --thumbnail evil.png         (a poison, and forty healthy tasks behind it)
    celery -A shop poison list

Where broker and results are is read from the environment; the default is a local Redis:

    SHOP_BROKER=amqp://localhost// celery -A shop worker --concurrency 2

With SHOP_REPAIRED=1 in the worker's environment both poisons do no harm any more: release what they left.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any

from celery import Celery, Task
from celery.signals import worker_init

from celery_poison import guarded

REDIS = "redis://localhost:6379/0"

app = Celery(
    "shop",
    broker=os.environ.get("SHOP_BROKER", REDIS),
    backend=os.environ.get("SHOP_BACKEND", REDIS),
)
app.conf.broker_connection_retry_on_startup = True


@guarded
@app.task
def charge(order: int) -> str:
    """An ordinary task."""
    time.sleep(0.05)
    return f"order {order} is paid"


@guarded
@app.task(bind=True)
def ship(self: Task, order: int) -> str:
    """Looks at its own history before it does what must not be done twice."""
    if self.request.poison.redelivered:
        return f"order {order} may have been shipped before: somebody must look"
    time.sleep(0.05)
    return f"order {order} is shipped"


@guarded
@app.task
def thumbnail(image: str) -> str:
    """Some images crash the library that draws them, and the pool process with it."""
    if "evil" in image and not repaired():
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGSEGV)
    return f"{image} is drawn"


@guarded(max_crashes=2)
@app.task
def report(month: str) -> str:
    """One month takes so much memory that the kernel ends the whole worker."""
    if month == "december" and not repaired():
        time.sleep(0.2)
        os.kill(os.getpid() if os.getpid() == worker_pid else os.getppid(), signal.SIGKILL)
        time.sleep(60)  # a pool process outlives its worker for a moment
    return f"the report of {month} is written"


def repaired() -> bool:
    return os.environ.get("SHOP_REPAIRED") == "1"


worker_pid = 0


@worker_init.connect
def remember_worker(**_: Any) -> None:
    """The pool's processes inherit it when they are forked."""
    global worker_pid
    worker_pid = os.getpid()


def main() -> None:
    """Send the poison first, so that every order stands behind it."""
    parser = argparse.ArgumentParser(description="Send forty healthy tasks, behind a poison if you name one.")
    parser.add_argument("--thumbnail", metavar="IMAGE", help="evil.png kills its pool process")
    parser.add_argument("--report", metavar="MONTH", help="december kills its worker")
    wanted = parser.parse_args()
    if wanted.thumbnail:
        print("thumbnail", thumbnail.delay(wanted.thumbnail).id)
    if wanted.report:
        print("report", report.delay(wanted.report).id)
    for order in range(20):
        charge.delay(order)
        ship.delay(order)
    print("and 40 orders")


if __name__ == "__main__":
    main()
