"""What is left when all should be quiet, and when everybody has left; and who was ever in quarantine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import redis

from celery_poison import Quarantine
from celery_poison.chaos.excuses import ENDS
from celery_poison.chaos.stage import QUEUE, TRIAL_QUEUE, Stage
from celery_poison.errors import PoisonError
from celery_poison.ledger.keys import Keys
from celery_poison.model import Parked, ParkingState, Start
from celery_poison.states import State

QUEUES = (QUEUE, TRIAL_QUEUE)
#: Told one by one, by their task ids.
FLAGGED, ENDED = "candidates", "ended"
#: States of a parking that may stay on record.
OVER = (ParkingState.FINISHED, ParkingState.KEPT)
#: Bytes that may be left in Redis apart from the journal and what is kept on purpose.
SMALL = 1 << 20

_KEYS = Keys()
#: What stays in the ledger, or goes with the time: docs/keys.md.
_STAYS = (
    *("meta", "journal", "quarantine", "failed", "incidents", "monitor", "monitor_fence", "deaths", "gate"),
    *("counts", "buried", "policy", "blocks", "published", "untold"),
    # These are counted by themselves.
    *("running", "done", "parked", "parcels", "candidates", "gone", "open"),
)
#: The broker's, which are counted, too.
_COUNTED = (*QUEUES, "unacked", "unacked_index")
#: The lock of a worker that was killed while it looked for what others hold: it expires.
_EXPIRES = ("unacked_mutex",)
#: Beginnings of the names of what stays.
_STAY = (
    *(_KEYS.message(""), _KEYS.incident(""), _KEYS.convictions(""), _KEYS.children, _KEYS.lineage("")),
    f"{_KEYS.groups}:",
    *("poison.returned.", "_kombu."),
)
#: Answers to a worker that was killed while it asked the others who they are (mingle).
_OF_CELERY = ".reply.celery.pidbox"
#: Of these, what grows with what happens, and is trimmed or expires.
_GROW = (_KEYS.journal, _KEYS.message(""), _KEYS.incident(""), "poison.returned.")


def unfinished(stage: Stage) -> dict[str, int]:
    """Return what is left of the broker's and the ledger's, by name; empty if nothing is.

    Raises:
        redis.RedisError: Redis is away.
    """
    with stage.redis.client() as client:
        found = dict(_of_broker(stage, client))
        if not stage.options.plain:
            found |= dict(_of_ledger(client, ends_stay=stage.rabbit is not None))
    return {name: count for name, count in found.items() if count}


def counted(stage: Stage) -> dict[str, int]:
    """Return the same without what is told one by one."""
    return {name: count for name, count in unfinished(stage).items() if name not in (FLAGGED, ENDED)}


def _of_broker(stage: Stage, client: redis.Redis) -> Iterator[tuple[str, int]]:
    if stage.rabbit is not None:
        with stage.app.connection_for_read() as connection, connection.default_channel as channel:
            for name in stage.queues:
                queue = channel.queue_declare(name, durable=True, auto_delete=False)
                yield name, int(queue.message_count)
        return
    yield from ((name, _number(client.llen(name))) for name in stage.queues)
    yield "unacked", _number(client.hlen("unacked"))
    yield "unacked_index", _number(client.zcard("unacked_index"))
    yield "arriving", sum(client.type(key) == "list" for key in client.scan_iter("poison.arriving.*"))


def _of_ledger(client: redis.Redis, *, ends_stay: bool) -> Iterator[tuple[str, int]]:
    ends = _ends(client)
    starts = _starts(client)
    over = {mid for mid, start in starts.items() if start.token in ends}
    yield ENDS if ends_stay else ENDED, len(over)
    yield "running", len(starts) - len(over)
    yield "done", len(ends) - len(over)
    for name in ("parcels", "gone", "open"):
        yield name, _number(client.hlen(getattr(_KEYS, name)))
    yield FLAGGED, _number(client.zcard(_KEYS.candidates))
    groups: Any = client.zrange(f"{_KEYS.groups}:queue", 0, -1, withscores=True)
    yield "groups", round(sum(many for _, many in groups)) - _number(client.zcard(_KEYS.quarantine))
    parked: Any = client.hgetall(_KEYS.parked)
    waiting = {
        mid: entry.start.id for mid, raw in parked.items() if (entry := Parked.decode(raw)).state not in OVER
    }
    # One whose message is remembered is told with that, by its id.
    told = {mid for mid, id in waiting.items() if client.exists(_KEYS.lineage(id))}
    yield "parked", len({*waiting} - over - told)


def _starts(client: redis.Redis) -> dict[str, Start]:
    """Return the starts on record by mid."""
    raws: Any = client.hgetall(_KEYS.running)
    return {mid: Start.decode(raw) for mid, raw in raws.items()}


def _ends(client: redis.Redis) -> set[str]:
    tokens: Any = client.hkeys(_KEYS.done)
    return {*tokens}


def _number(answer: Any) -> int:
    return int(answer or 0)


def on_record(stage: Stage) -> list[str]:
    """Return one line for each message, start, end, parking and candidate that Redis holds, and where."""
    hashes = {"unacked": "unacked", **{name: getattr(_KEYS, name) for name in ("running", "done", "parked")}}
    with stage.redis.client(decode_responses=False) as client:
        rows: list[tuple[str, Any]] = []
        for name, key in hashes.items():
            rows += [(f"{name} {field.decode()}", value) for field, value in client.hgetall(key).items()]
        rows += [("candidates", id) for id in client.zrange(_KEYS.candidates, 0, -1)]
        rows += [(name, value) for name in stage.queues for value in client.lrange(name, 0, -1)]
    return [f"{where}: {value.decode(errors='replace')}" for where, value in rows]


def ended(stage: Stage) -> set[str]:
    """Return the task ids of starts that ended and are on record still."""
    with stage.redis.client() as client:
        ends = _ends(client)
        return {start.id for start in _starts(client).values() if start.token in ends}


def flagged(stage: Stage) -> tuple[set[str], set[str]]:
    """Return the task ids that are candidates or remembered for good, and those whose history expires."""
    with stage.redis.client() as client:
        ids: Any = client.zrange(_KEYS.candidates, 0, -1)
        keys = [key for key in client.scan_iter(count=1000) if key.startswith(_KEYS.lineage(""))]
        expires = {key for key in keys if _number(client.ttl(key)) > 0}
        named = {key: key.removeprefix(_KEYS.lineage("")) for key in keys}
    flagged = {*ids, *(named[key] for key in {*keys} - expires)}
    return flagged, {named[key] for key in expires} - flagged


def left_behind(stage: Stage) -> dict[str, int]:
    """Return keys that no living worker needs, bytes that are too many for them, and temporary files."""
    found: dict[str, int] = {}
    stays, size = {*_COUNTED, *_EXPIRES, *(getattr(_KEYS, name) for name in _STAYS)}, 0
    with stage.redis.client() as client:
        for key in client.scan_iter(count=1000):
            if key not in stays and not key.startswith(_STAY) and not key.endswith(_OF_CELERY):
                found[f"key {key}"] = 1
            if not key.startswith(_GROW):
                size += _number(client.memory_usage(key, samples=0))
    if size > SMALL:
        found["bytes in Redis"] = size
    files = (path.relative_to(stage.temporary) for path in stage.temporary.rglob("*"))
    return found | {f"file {path}": 1 for path in files if not _may_stay(path)}


def _may_stay(path: Path) -> bool:
    """The directory of all workers of a user, what fills the disk, and what billiard leaves of the killed."""
    return path.match("celery_poison-*") or path.name == "ballast" or path.parts[0].startswith("pymp-")


#: Seconds between two looks, and more journal entries than come meanwhile.
LOOK, LATEST = 0.5, 500


class Watch:
    """Looks at quarantine and journal from entering to leaving, in a thread: Redis may forget both."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="watch", daemon=True)
        #: When each was first seen there; monotonic.
        self.convicted: dict[str, float] = {}
        self._entries: dict[str, dict[str, str]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look(count=1_000_000)

    def _look_on(self) -> None:
        while not self._over.wait(LOOK):
            self._look()

    def _look(self, count: int = LATEST) -> None:
        if not self._stage.options.plain:
            with suppress(PoisonError):  # Redis is away
                queries = Quarantine(self._stage.app).queries
                kept = queries.kept_ids(State.NDLV)
                now = time.monotonic()
                for _, id in kept:
                    self.convicted.setdefault(id, now)
                self._entries |= {entry["at"]: entry for entry in queries.journal(count=count)}

    @property
    def journal(self) -> list[dict[str, str]]:
        """Every entry that was seen, the oldest first."""
        return sorted(self._entries.values(), key=lambda entry: [*map(int, entry["at"].split("-"))])
