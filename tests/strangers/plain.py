"""A service that does not have celery_poison: it hands headers on, and publishes ids twice."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from celery import Celery, chord, group, signature

app = Celery(
    "plain", broker=os.environ.get("BROKER_URL", "memory://"), backend=os.environ.get("RESULT_BACKEND")
)
app.conf.task_default_queue = "plain"


def work(n: int, **options: Any) -> Any:
    return signature("fleet.work", (n, 0.0, True), immutable=True, app=app).set(queue="celery", **options)


@app.task(bind=True, shared=False, name="plain.hands_on")
def hands_on(self: Any, how: str) -> None:
    """Publish two tasks of the guarded service with the headers of this task's own message."""
    headers = self.request.headers
    match how:
        case "send_task":
            for n in (0, 1):
                app.send_task("fleet.work", (n, 0.0, True), queue="celery", headers=headers)
        case "set":
            for n in (0, 1):
                work(n, headers=headers).delay()
        case "group":
            group(work(n) for n in (0, 1)).apply_async(headers=headers)
        case "chord":
            chord([work(0, headers=headers)], work(1, headers=headers)).delay()
        case "replace":
            app.send_task("fleet.work", (0, 0.0, True), queue="celery", headers=headers)
            raise self.replace(work(1, headers=headers))


if __name__ == "__main__":
    for name, args, options in json.loads(sys.argv[1]):
        app.send_task(name, args, **{"queue": "celery", **options})
