"""What is left when all should be quiet, and when everybody has left; and who was ever in quarantine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import redis

from celery_poison import Quarantine
from celery_poison.desk.queues import find_deaf
from celery_poison.errors import PoisonError
from celery_poison.ledger.keys import Keys
from celery_poison.model import Parked, ParkingState, Start
from celery_poison.portrait import STUCK
from celery_poison.states import State
from tests.chaos.excuses import ACTIVATION, ENDS, EXPIRES, ITS_END, PARKED, REMEMBERED
from tests.chaos.stage import QUEUE, TRIAL_QUEUE, Stage

_KEYS = Keys()
#: What stays in the ledger, or goes with the time: docs/keys.md.
_STAYS = (
    *("meta", "journal", "quarantine", "failed", "incidents", "monitor", "monitor_fence", "deaths", "gate"),
    *("counts", "deaths_by_day", "buried", "policy", "blocks", "untold"),
    # These are counted by themselves.
    *("running", "done", "parked", "parcels", "candidates", "gone", "open"),
)
#: The broker's, of which all are counted but the lock of a worker that was killed while it looked for what
#: others hold: that expires.
_OF_BROKER = (QUEUE, TRIAL_QUEUE, "unacked", "unacked_index", "unacked_mutex")
#: Beginnings of the names of what grows with what happens, and is trimmed or expires; and of what else stays.
_GROW = (_KEYS.journal, _KEYS.message(""), _KEYS.incident(""), "poison.returned.")
_STAY = (
    *(*_GROW, _KEYS.convictions(""), _KEYS.children, _KEYS.lineage(""), f"{_KEYS.groups}:", "_kombu."),
    f"{_KEYS.of('task_names')}:",
)
#: Answers to a worker that was killed while it asked the others who they are (mingle).
_OF_CELERY = ".reply.celery.pidbox"


class Left(NamedTuple):
    """What is left: how much of what, and the ids of messages by what is known of them."""

    counts: dict[str, int]
    known: dict[str, set[str]]

    @property
    def open(self) -> dict[str, int]:
        """What may still end without time running out."""
        ids = {text: len(ids) for text, ids in self.known.items() if ids and text != EXPIRES}
        return {name: count for name, count in (self.counts | ids).items() if name != ENDS}


def look(stage: Stage) -> Left:
    """Return what is left of the broker's and the ledger's.

    Raises:
        redis.RedisError: Redis is away.
    """
    known: dict[str, set[str]] = {}
    with stage.redis.client() as client:
        counts = dict(_of_broker(stage, client))
    if not stage.options.plain:
        with stage.ledger.client() as client:
            counts |= dict(_of_ledger(client, known))
    if stage.options.broker == "rabbitmq":  # a copy may come
        counts[ENDS] = len(known.pop(ITS_END, ()))
    return Left({name: count for name, count in counts.items() if count}, known)


def _of_broker(stage: Stage, client: redis.Redis) -> Iterator[tuple[str, int]]:
    if stage.options.broker == "rabbitmq":
        with stage.app.connection_for_read() as connection, connection.default_channel as channel:
            for name in stage.queues:
                queue = channel.queue_declare(name, durable=True, auto_delete=False)
                yield name, int(queue.message_count)
        return
    yield from ((name, _number(client.llen(name))) for name in stage.queues)
    yield "unacked", _number(client.hlen("unacked"))
    yield "unacked_index", _number(client.zcard("unacked_index"))
    yield "arriving", sum(client.type(key) == "list" for key in client.scan_iter("poison.arriving.*"))


def _of_ledger(client: redis.Redis, known: dict[str, set[str]]) -> Iterator[tuple[str, int]]:
    """Yield counts, and enter what is known of single messages."""
    with client.pipeline() as asked:  # at one moment: an end and its start go together
        asked.hkeys(_KEYS.done)
        asked.hgetall(_KEYS.running)
        ends, raws = asked.execute()
    starts = {mid: Start.decode(raw) for mid, raw in raws.items()}
    over = {mid: start.id for mid, start in starts.items() if start.token in {*ends}}
    yield "running", len(starts) - len(over)
    yield "done", len(ends) - len(over)
    for name in ("parcels", "gone", "open"):
        yield name, _number(client.hlen(getattr(_KEYS, name)))
    groups: Any = client.zrange(f"{_KEYS.groups}:queue", 0, -1, withscores=True)
    yield "groups", round(sum(many for _, many in groups)) - _number(client.zcard(_KEYS.quarantine))
    flagged: Any = client.zrange(_KEYS.candidates, 0, -1)
    keys = client.scan_iter(_KEYS.lineage("*"), 1000)
    histories = {key.removeprefix(_KEYS.lineage("")) for key in keys}
    for_good = {id for id in histories if _number(client.ttl(_KEYS.lineage(id))) <= 0}
    known |= {ITS_END: {*over.values()}, REMEMBERED: {*flagged} | for_good}
    known[EXPIRES] = histories - known[REMEMBERED]
    raws = client.hgetall(_KEYS.parked)
    # One whose message is remembered is told with that, by its id; these states may stay on record.
    over_or_kept = (ParkingState.FINISHED, ParkingState.KEPT)
    parked = [Parked.decode(raw) for mid, raw in raws.items() if mid not in over]
    ids = {entry.start.id for entry in parked if entry.state not in over_or_kept}
    known[PARKED] = ids - histories


def _number(answer: Any) -> int:
    return int(answer or 0)


def left_behind(stage: Stage) -> dict[str, int]:
    """Return keys that no living worker needs, bytes that are too many for them, and temporary files."""
    found: dict[str, int] = {}
    stays, size = {*_OF_BROKER, _KEYS.of("cost"), *(getattr(_KEYS, name) for name in _STAYS)}, 0
    with stage.ledger.client() as client:
        for key in client.scan_iter(count=1000):
            if key not in stays and not key.startswith(_STAY) and not key.endswith(_OF_CELERY):
                found[f"key {key}"] = 1
            if not key.startswith(_GROW):
                size += _number(client.memory_usage(key, samples=0))
    if size > 1 << 20:
        found["bytes in Redis"] = size
    files = (path.relative_to(stage.temporary) for path in stage.temporary.rglob("*"))
    return found | {f"file {path}": 1 for path in files if not _may_stay(path)}


def _may_stay(path: Path) -> bool:
    """The directory of all workers of a user, what fills the disk, and what billiard leaves of the killed."""
    return path.match("celery_poison-*") or path.name == "ballast" or path.parts[0].startswith("pymp-")


#: Seconds in which a word for a worker that does not work is noted once.
_ONCE_IN = 5.0


class Watch:
    """Looks at quarantine, journal and workers again and again: Redis may forget all of them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        #: When each was first seen there; monotonic.
        self.convicted: dict[str, float] = {}
        self._entries: dict[str, dict[str, str]] = {}
        #: Workers that were said not to work: their lives, the word, and when; monotonic.
        self.accused: list[tuple[str, str, float]] = []
        self._lives: dict[str, str] = {}
        self._deaf_at = time.monotonic()

    def look_on(self, over: threading.Event) -> None:
        while not over.wait(0.5):
            self._look(count=500)  # more than come meanwhile
            with suppress(PoisonError):
                self._look_at_workers()
        self._look(count=1_000_000)

    def _look(self, count: int) -> None:
        if not self._stage.options.plain:
            with suppress(PoisonError):  # Redis is away
                queries = Quarantine(self._stage.app).queries
                kept = queries.kept_ids(State.NDLV)
                now = time.monotonic()
                for _, id in kept:
                    self.convicted.setdefault(id, now)
                self._entries |= {entry["at"]: entry for entry in queries.journal(count=count)}

    def _look_at_workers(self) -> None:
        if self._stage.options.plain:
            return
        queries, now = Quarantine(self._stage.app).queries, time.monotonic()
        rows = queries.workers(int(1000 * ACTIVATION))
        words = {row.worker: row.condition() for row in rows}
        said = {worker: str(word) for worker, word in words.items() if word in STUCK}
        if now - self._deaf_at > _ONCE_IN:
            self._deaf_at = now
            said |= {each.worker: "deaf" for each in find_deaf(self._stage.app, queries, rows)[0]}
        for worker in words:  # the first sight of it is soon after it began
            self._lives.setdefault(worker, self._stage.life_of(worker))
        for worker, word in said.items():
            life = self._lives[worker]
            if not any(each[:2] == (life, word) and now - each[2] < _ONCE_IN for each in self.accused):
                self.accused.append((life, word, now))

    @property
    def journal(self) -> list[tuple[float, dict[str, str]]]:
        """Every entry that was seen, the oldest first, and when it was made; monotonic."""
        behind = time.monotonic() - time.time()
        return sorted(
            ((int(at.partition("-")[0]) / 1000 + behind, entry) for at, entry in self._entries.items()),
            key=lambda made: made[0],
        )
