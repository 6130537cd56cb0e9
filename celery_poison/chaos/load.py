"""What is sent: a steady stream of healthy messages, and a poison whenever the plan says so."""

from __future__ import annotations

import random
import threading
import time

from celery_poison.chaos.app import UNPICKLED, WORK, Deadly
from celery_poison.chaos.runs import Sent
from celery_poison.chaos.stage import Stage

#: Seconds that the longest healthy task takes.
LONGEST = 1.5
#: Seconds until somebody whose broker was away tries again.
PATIENCE = 0.2


class Load:
    """Sends in a thread of its own from entering to leaving."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._dice = random.Random(seed)
        self._rate = stage.options.slots
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="load", daemon=True)
        self.sent: dict[str, Sent] = {}

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        number, due = 0, time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            number += 1
            self._send_until_sure(f"h{number}", "healthy", WORK, (round(self._dice.uniform(0, LONGEST), 3),))
            # After an outage it goes on at its pace instead of making up for it.
            due = max(due, time.monotonic() - 1.0) + 1 / self._rate

    def send_poison(self, name: str) -> str:
        """Send one of a kind; return its task id."""
        number = 1 + sum(sent.kind == name and sent.sure for sent in list(self.sent.values()))
        return self._send_until_sure(f"{name}{number}", name, f"chaos.{name}")

    def _send_until_sure(self, id: str, kind: str, task: str, args: tuple[object, ...] = ()) -> str:
        attempt, name = 0, id
        while not self._stage.stopping.is_set():
            attempt += 1
            name = f"{id}.{attempt}"
            if self._send(name, kind, task, args):
                break
            self._stage.wait(PATIENCE)
        return name

    def _send(self, id: str, kind: str, task: str, args: tuple[object, ...]) -> bool:
        options = {}
        if kind == UNPICKLED:
            args, options = (Deadly(id),), {"serializer": "pickle"}
        at = time.monotonic()
        try:
            self._stage.app.tasks[task].apply_async(args, task_id=id, retry=False, **options)
        except Exception:  # whatever it is: nobody knows whether it has arrived
            self.sent[id] = Sent(kind, at, sure=False)
            return False
        self.sent[id] = Sent(kind, at, sure=True)
        return True
