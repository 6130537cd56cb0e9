"""What another user of Redis may write into the ledger's keys, which docs/keys.md lists."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from celery_poison.model import Phase, Start
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.docs.pages import rows, section, text, words

WORKER, INCIDENT, ID = "w9@test/b00t", "inc1", "i"
#: What a name in docs/keys.md stands for here.
NAMES = {
    "ID": ID,
    "IID": INCIDENT,
    "INC": WORKER,
    "PID": "7",
    "NAME": "celery.quarantine",
    "LANE": "celery",
    "VERSION": "v1",
    "TASK": "fleet.healthy",
    "FP": "f" * 16,
    "KEY": "k",
    "TOKEN": "b00t.1",
    "SHA": "0",
    "DIGEST": "d" * 16,
}
#: Fields that a page tells in its sentences.
FIELDS = {
    "blocks": ["task:fleet.healthy", "fingerprint:00", "version"],
    "paused": ["queue:celery", "task:a", "endpoint:w q", "version:v1 a", "version"],
    "policy": ["*", "fleet.healthy", "queue:celery", "version"],
    "published": ["version", "open", "sheet:1", "fate:1", "applied", "refused"],
    "outbox_lanes": ["celery", "celery\tfleet.healthy", "celery\t\ttied"],
    "outbox_blocked": ["celery", "celery\tfleet.healthy"],
    "counts": ["crashed:oom", "quarantined:oom", "cleared", "recovered:inf", "recovered_ms"],
    "deaths_by_day": ["20000 fleet.healthy", "20000", "x y", "99999999999999999999 t"],
    "cost": ["runs 20000 oom a", "ms 20000 oom a", "runs all oom a", "ms in 20000 inc1", "x y", "ms"],
    "gate": ["until", "closed_at", "deaths", "fleet", "lifted_at", "lifted_by"],
    "meta": ["schema", "app", "broker", "address", "server", "secret"],
    "notified": ["gate:0", "x:y"],
    "would": ["oom"],
}

_start = Start(
    Phase.RUNNING, "b00t.1", WORKER, 7, 1, 1, 0, ID, "fleet.healthy", "celery", 2, 5, 10, 1
).encode()
_leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(["", "1"])
)
_json: Any = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["since_ms", "until_ms", "task", "actor", "note", "at_ms", "v", "fence", "report"]
            )
            | st.text(max_size=4),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)
_values = (
    st.sampled_from(
        [
            *(b"", b"0", b"1", b"-1", b"9" * 400, b"1e999", b"NaN", b"x", b"\xff\xfe", b"[]", b"{}", b"null"),
            *(b"NDLV", b"FAIL", b"TBDL", b"1764323000000", b"[" * 5000, "\u0663".encode(), b"\x1b[2J\r\n"),
        ]
    )
    | st.binary(max_size=12)
    | _json.map(lambda value: json.dumps(value).encode())
    | st.tuples(st.integers(0, 13), _leaves).map(lambda change: _changed(*change))
)
_scores = st.sampled_from([0.0, 1.0, -1.0, float("inf"), float("-inf"), 1e300, 1764323000000.0])


def _changed(index: int, value: Any) -> bytes:
    start: Any = json.loads(_start)
    start[index] = value
    return json.dumps(start).encode()


@dataclass
class Foreign:
    """One key that somebody else may write."""

    name: str
    kind: str
    fields: list[str] = field(default_factory=list)

    def write(self, client: Any, names: list[str], drawn: tuple[Any, ...]) -> None:
        kind, pick, value, score = drawn
        own = [*self.fields, *names]
        name = own[pick % len(own)]
        match kind or self.kind:
            case "hash":
                client.hset(self.name, name, value)
            case "zset":
                client.zadd(self.name, {value if pick % 3 == 0 else name: score})
            case "list":
                client.rpush(self.name, value)
            case "set":
                client.sadd(self.name, value)
            case "stream":
                client.xadd(self.name, {name or "x": value, "event": value if pick % 2 else b"crashed"})
            case _:
                client.set(self.name, value)


def _keys(mid: str) -> list[Foreign]:
    """Return the keys of the page, with the fields that it names."""
    page, names = text("keys.md"), {**NAMES, "MID": mid}
    told = {words(row[0])[0]: words(row[1]) for row in rows(section(page, "The hashes"))}
    found = []
    for row in rows(section(page, "The ledger")):
        key, kind = words(row[0])[0].removeprefix("{ns}:"), row[1]
        name = "{poison}:" + re.sub(r"\b[A-Z]{2,}\b", lambda word: names[word[0]], key)
        found.append(Foreign(name, kind, told.get(key) or FIELDS.get(key, [])))
    return found


def fill(fleet: Fleet, keeper: Keeper) -> str:
    """Put one of each into the ledger, as the plugin writes it; return a mid."""
    client, keys = keeper.ledger.client, keeper.ledger.keys
    mid = keeper.send_and_keep("fleet.healthy", 1, task_id=ID)
    given_up = keeper.send_and_keep("fleet.healthy", 2)
    assert fleet.quarantine.discard([given_up])[0].done
    fleet.quarantine.block_task("fleet.kill_child")
    fleet.quarantine.pause_queue("elsewhere", force=True)
    keeper.ledger.fleet.beat(
        WORKER, {"node": "w9@test", "pid": 7, "host": "h", "pool": "prefork", "queues": "[]"}
    )
    client.hset(keys.incident(INCIDENT), mapping={"incident": INCIDENT, "worker": WORKER, "died_at": 1})
    client.zadd(keys.incidents, {INCIDENT: 1})
    client.hset(keys.running, "other", _start)
    return mid


def restore(client: Any, before: dict[bytes, bytes]) -> None:
    now = {key: client.dump(key) for key in client.keys("*")}
    for key in now.keys() | before.keys():
        if now.get(key) != before.get(key):
            client.delete(key)
            if before.get(key):
                client.restore(key, 0, before[key])


def writes(mid: str) -> Any:
    """Return a strategy for what others have written beside a message that is kept."""
    kinds = st.sampled_from([""] * 12 + ["hash", "zset", "string", "list"])
    drawn = st.tuples(kinds, st.integers(0, 60), _values, _scores)
    return st.lists(st.tuples(st.sampled_from(_keys(mid)), drawn), min_size=1, max_size=4)


def write(client: Any, mid: str, written: list[Any]) -> None:
    for key, drawn in written:
        with suppress(Exception):  # of the wrong type, by an earlier one
            key.write(client, [mid, ID, WORKER, INCIDENT, "", "\x1b[2J", "celery"], drawn)
