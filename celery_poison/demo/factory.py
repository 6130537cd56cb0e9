"""Builds the demo's app: the same one in the command, in its workers and for whoever looks at it later."""

from __future__ import annotations

import os
from collections.abc import Mapping

from celery import Celery

from celery_poison.demo import tasks
from celery_poison.demo.tally import Tally

REDIS = "POISON_DEMO_REDIS"
PLAIN = "POISON_DEMO_PLAIN"

#: Short, so that the demo shows a failover in seconds; the defaults are 3 s and 10 s.
HEARTBEAT = 0.4
ACTIVATION = 2.0
#: Plain Celery gives back a killed worker's messages after so many seconds, when kombu next looks:
#: every 100 s, and 10 s after a start. With the default, an hour, the loop would die out as soon as
#: every poison waits for a worker that is dead.
VISIBILITY = 5


def app_from(environ: Mapping[str, str]) -> Celery:
    """Return the app that an environment describes.

    ``POISON_DEMO_REDIS`` is the URL of a Redis server, without a database; ``POISON_DEMO_PLAIN=1``
    leaves the plugin out.

    Raises:
        LookupError: no Redis is named. There is no default, since these tasks kill who runs them.
    """
    if not environ.get(REDIS):
        raise LookupError(
            f"{REDIS} is not set: the demo's app belongs to a running `celery-poison demo --keep`"
        )
    return build_app(environ[REDIS], plain=environ.get(PLAIN) == "1", current=True)


def build_app(redis_url: str, *, plain: bool = False, current: bool = False) -> Celery:
    """Return the app on a Redis server, whose databases 0 to 2 it uses.

    Args:
        plain: without the plugin; late acknowledgement is all that Celery itself offers.
        current: make it this process's current app; a worker does.
    """
    _forget_other_brokers()
    app = Celery("celery_poison_demo", set_as_current=current)
    app.conf.update(
        broker_url=f"{redis_url}/0",
        result_backend=f"{redis_url}/1",
        broker_connection_retry_on_startup=True,
        accept_content=["json", tasks.SERIALIZER],
    )
    if plain:
        app.conf.update(
            task_acks_late=True,
            task_reject_on_worker_lost=True,
            broker_transport_options={"visibility_timeout": VISIBILITY},
        )
    else:
        app.conf.update(poison_heartbeat_interval=HEARTBEAT, poison_activation_interval=ACTIVATION)
    tasks.register(app, Tally(f"{redis_url}/2"), plain=plain)
    return app


def _forget_other_brokers() -> None:
    # Celery prefers these to what an app says: the poison would go to somebody's real workers.
    for name in ("BROKER_URL", "BROKER_READ_URL", "BROKER_WRITE_URL", "RESULT_BACKEND", "CONFIG_MODULE"):
        os.environ.pop(f"CELERY_{name}", None)
