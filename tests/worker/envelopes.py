"""Envelopes that no producer of Celery's makes: every header with values of wrong kinds, and odd bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from celery_poison.headers import OURS

#: Task ids and arguments of envelopes begin here; what is healthy stands below.
FIRST = 1000
#: A guarded task, and one that is not.
TASKS = ("fleet.counted", "fleet.told")

CELERYS = (
    *("lang", "id", "task", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit"),
    *("root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting"),
    *("stamped_headers", "stamps", "compression"),
)


def nested(depth: int) -> list[Any]:
    """Return lists in each other."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


#: kind -> a value of it; thirteen.
KINDS: dict[str, Any] = {
    "null": None,
    "true": True,
    "number": 30,
    "fraction": -1.5,
    "huge": 10**40,
    "empty": "",
    "text": "x y",
    "surrogate": "bad \udcff",
    "long": "x" * 100_000,
    "list": [[1], "\udcff", None],
    "map": {"a": {"b": "\udcff"}},
    "pair": ["a", {}],
    "nested": nested(900),
}

#: name -> a body of JSON, or bytes that are none.
BODIES: dict[str, bytes] = {
    "no json": b"[[1], {",
    "empty": b"",
    "null": b"null",
    "number": b"5",
    "text": b'"text"',
    "list": b"[]",
    "map": b"{}",
    "two": b"[[], {}]",
    "no options": b"[[%d], {}, null]",
    "options of another kind": b'[[%d], {}, {"callbacks": 5, "errbacks": "x", "chain": {}, "chord": [1]}]',
    "arguments of another kind": b'[{"%d": 1}, {}, {}]',
    "a number of arguments": b"[%d, {}, {}]",
    "no arguments": b"[null, {}, {}]",
    "keyword arguments: a number": b"[[%d], 5, {}]",
    "keyword arguments: null": b"[[%d], null, {}]",
    "keyword arguments: a list": b'[[%d], ["x"], {}]',
    "keyword arguments: a text": b'[[%d], "x", {}]',
    "three letters": b'"abc"',
    "three names": b'{"a": [%d], "b": {}, "c": {}}',
    "options: a number": b"[[%d], {}, 5]",
    "options: a text": b'[[%d], {}, "x"]',
    "options: a list": b'[[%d], {}, ["x"]]',
    "options: pairs": b'[[%d], {}, [["a", 1]]]',
    "nested": json.dumps([[0, nested(900)], {}, {}]).replace("0", "%d", 1).encode(),
    "surrogates": b'[[%d, "\\udcff"], {"\\udcff": 1}, {"callbacks": [{"task": "\\udcff"}]}]',
    "not utf-8": b'[[%d, "\xff"], {}, {}]',
}


class Envelope(NamedTuple):
    """One message; ``number`` is its task's argument."""

    name: str
    number: int
    body: bytes
    headers: dict[str, Any]

    @property
    def id(self) -> str:
        return f"e-{self.number}"

    def item(self) -> bytes:
        """Return it as it stands in a queue on Redis."""
        told = {
            "body": self.body.decode("utf-8", "surrogateescape"),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": self.headers,
            "properties": {
                "correlation_id": self.id,
                "reply_to": "nobody",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": "celery"},
                "priority": 0,
                "delivery_tag": f"tag-{self.number}",
            },
        }
        return json.dumps(told).encode()


def _headers(number: int) -> dict[str, Any]:
    return {
        "lang": "py",
        "task": TASKS[number % 2],
        "id": f"e-{number}",
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": f"[{number}]",
        "kwargsrepr": "{}",
        "root_id": f"e-{number}",
        "origin": "gen1@h",
    }


def _body(number: int) -> bytes:
    return b'[[%d], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]' % number


def envelopes() -> Iterator[Envelope]:
    """Yield one for each header of Celery's and ours and each kind, and one for each odd body."""
    number = FIRST
    for header in (*CELERYS, *OURS):
        for kind, value in KINDS.items():
            number += 1
            headers = {**_headers(number), header: value}
            yield Envelope(f"{header}: {kind}", number, _body(number), headers)
    for name, body in BODIES.items():
        for _ in TASKS:
            number += 1
            told = body % number if b"%d" in body else body
            yield Envelope(f"body: {name}", number, told, _headers(number))
