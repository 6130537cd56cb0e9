"""What a worker leaves behind that was killed: messages and starts in every state, one of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import redis
from celery import Celery

from celery_poison.broker.identity import identity_of
from celery_poison.broker.redis.receiving import arriving_key
from celery_poison.broker.transport import guarded_connection
from celery_poison.errors import Fenced
from celery_poison.fleet.monitor import Monitor
from celery_poison.headers import mid_of
from celery_poison.ledger import signature
from celery_poison.ledger.fleet import Silence
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from celery_poison.testing import wait_until
from tests.fleet.apps import build

NODE, BOOT = "dead@test", "dead00000000beef"
WORKER = f"{NODE}/{BOOT}"
OTHER = "other"
#: Long, so that a lock that is held stays held.
SETTINGS = {"poison_activation_interval": 60.0, "task_queue_max_priority": 9}

#: Name of a message -> phase of its start (or none), how it ended, whether it ran alone.
STARTS: dict[str, tuple[str, str, int]] = {
    "running": ("R", "", 0),
    "running too": ("R", "", 0),
    "alone, while another was received": ("R", "", 1),
    "being received": ("A", "", 0),
    "finished": ("R", "D", 0),
    "finished too": ("R", "D", 0),
    "acknowledged": ("R", "D", 0),
    "rolled back": ("R", "B", 0),
    "interrupted": ("R", "I", 0),
    "let in": ("C", "", 0),
    "stored its success": ("R", "", 0),
}
#: Received, and not begun.
PREFETCHED = ("prefetched", "prefetched too")
#: Deaths that count, and ends that count as failures.
STRUCK = {"running", "running too", "being received"}
FAILED = {"rolled back"}


@dataclass
class Deathbed:
    """One database that is broker and ledger, as seen by processes that have a client each."""

    environ: Mapping[str, str]

    def on(self, url: str) -> Deathbed:
        return Deathbed({**self.environ, "BROKER_URL": url, "POISON_REDIS_URL": url})

    @property
    def url(self) -> str:
        return self.environ["BROKER_URL"]

    @cached_property
    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    @cached_property
    def app(self) -> Celery:
        return build(self.environ)

    # --- the worker that dies ------------------------------------------------------------------

    def lay_out(self) -> None:
        """Be the worker that dies: to be called in a process that ends by itself, without a farewell."""
        ledger = plugin_of(self.app).open_ledger()
        signature.enroll(ledger.client, ledger.keys, **identity_of(self.app))
        run_id = str(ledger.client.info("server")["run_id"])
        ledger.fleet.beat(WORKER, {"node": NODE, "queues": f"celery,{OTHER}"}, first=True, run_id=run_id)
        for name in (*STARTS, *PREFETCHED):
            self._send(name)
        self._send("of another queue", queue=OTHER, priority=6)
        channel = guarded_connection(lambda: BOOT)(self.url).default_channel
        for number, name in enumerate(STARTS):
            message = channel.basic_get("celery")
            self._begin(ledger, message, number, name)
            if name == "acknowledged":
                message.ack()
        for queue in (*("celery" for _ in PREFETCHED), OTHER):
            assert channel.basic_get(queue)
        self._send("arriving")
        ledger.client.execute_command("LMOVE", "celery", arriving_key(BOOT, "celery"), "RIGHT", "LEFT")
        self._send("waiting")
        self._send("waiting too")

    def _send(self, name: str, **options: Any) -> None:
        self.app.tasks["fleet.holds"].apply_async((name,), task_id=name, **options)

    def _begin(self, ledger: Any, message: Any, number: int, name: str) -> None:
        phase, ended, alone = STARTS[name]
        task, token = message.headers["task"], f"{BOOT}.{number}"
        start = Start(phase, token, WORKER, 4242, 1, 1, alone, name, task, "celery", 2, 5, 10, 1)
        ledger.client.hset(ledger.keys.running, mid_of(message.headers), start.encode())
        if ended:
            ledger.client.hset(ledger.keys.done, token, ended)
        if name == "stored its success":
            self.app.backend.store_result(name, 1, "SUCCESS")

    def wait_until_gone(self) -> None:
        """Wait until its connections have been gone for long enough to be believed."""
        ledger = plugin_of(self.app).open_ledger()
        wait_until(
            lambda: ledger.fleet.watch(60_000).unwell == {WORKER: Silence.GONE}, what="noticed as gone"
        )

    def copy_to(self, url: str) -> Deathbed:
        """Copy everything into another database of the same server."""
        database = int(url.rpartition("/")[2])
        for key in self.client.scan_iter():
            self.client.copy(key, key, destination_db=database)
        return self.on(url)

    # --- those who come after it ---------------------------------------------------------------

    def monitor(self, name: str, rounds: int = 3) -> None:
        """Be a monitor for some rounds; one that finds itself deposed goes on as a standby, as in life."""
        plugin = plugin_of(self.app)
        ledger = plugin.open_ledger()
        monitor = Monitor(self.app, ledger, plugin.settings, lambda: (name, ""), lambda *facts: None)
        for _ in range(rounds):
            try:
                monitor.round()
            except Fenced:
                monitor._start_listening_anew()

    def new_owner(self) -> None:
        """Be a worker that receives everything and has begun to run it."""
        ledger = plugin_of(self.app).open_ledger()
        boot = "aced000000000001"
        worker = f"new@test/{boot}"
        ledger.fleet.beat(worker, {"node": "new@test", "queues": "celery"}, first=True)
        channel = guarded_connection(lambda: boot)(self.url).default_channel
        while message := channel.basic_get("celery"):
            name, task, mid = message.headers["id"], message.headers["task"], mid_of(message.headers)
            recorded = ledger.messages.look(mid, name, 60_000)
            if recorded.start is None:
                start = Start("R", f"{boot}.{name}", worker, 1, 1, 2, 0, name, task, "celery", 2, 5, 10, 1)
                assert ledger.messages.claim(mid, b"", start)

    def free_the_lock(self) -> None:
        """Take the lock from a monitor that is dead or stopped, as time would."""
        self.client.delete(plugin_of(self.app).keys.monitor)

    # --- what can be seen ----------------------------------------------------------------------

    def queued(self) -> dict[str, list[str]]:
        """Return the ids in each queue list, the next to be delivered first."""
        found = {}
        for key in self.client.scan_iter():
            if self.client.type(key) == b"list" and not key.startswith(b"poison."):
                rows = [json.loads(row) for row in reversed(self.client.lrange(key, 0, -1))]
                found[key.decode()] = [row["headers"]["id"] for row in rows]
        return found

    def picture(self) -> dict[str, Any]:
        """Return all that matters of what is there, without what differs from run to run."""
        keys, queries = plugin_of(self.app).keys, plugin_of(self.app).open_ledger().read
        names = (*STARTS, *PREFETCHED)
        history = {name: self.client.hgetall(keys.lineage(name)) for name in names}
        counts = (b"strikes", b"crashes", b"failures", b"candidate")
        return {
            "queued": {queue: Counter(ids) for queue, ids in self.queued().items()},
            "unacked": self.client.hlen("unacked") + self.client.zcard("unacked_index"),
            "arriving": self.client.keys("poison.arriving.*"),
            "running": {start.id for _, start, _ in queries.running()},
            "done": self.client.hgetall(keys.done),
            "candidates": set(self.client.zrange(keys.candidates, 0, -1)),
            "counts": {n: {c: h[c] for c in counts if c in h} for n, h in history.items() if h},
            "open": queries.open_incidents(),
            "journal": Counter(
                (e["event"], e["id"], e["cause"])
                for e in queries.journal()
                if e["event"] not in ("monitor_changed", "failover_finished")
            ),
        }

    def changes_of_hands(self) -> int:
        """Return how often the monitor's lock was taken."""
        return int(self.client.get(plugin_of(self.app).keys.monitor_fence) or 0)

    def everything(self) -> dict[bytes, Any]:
        """Return every key with its value, byte for byte."""
        read = {
            b"string": self.client.get,
            b"hash": self.client.hgetall,
            b"list": lambda key: self.client.lrange(key, 0, -1),
            b"set": self.client.smembers,
            b"zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
            b"stream": self.client.xrange,
        }
        return {key: read[self.client.type(key)](key) for key in self.client.scan_iter()}
