"""Any bytes and any JSON on the way in: nothing escapes, nothing is executed, nothing is lost (NEW-5)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_poison import Quarantine
from celery_poison.broker.sealed import ITEM
from celery_poison.headers import MID, OURS, new_mid
from celery_poison.keep.body import preview
from tests import sampled
from tests.worker.envelopes import BODIES, CELERYS, KINDS, nested
from tests.worker.receiving import Site

#: How many messages, as always and with ``tox -e matrix``; 2,000 take about a minute.
FEW = int(os.environ.get("POISON_FUZZ_EXAMPLES", "150"))
MANY = 20_000

GONE = "gone"
CALL = '[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

#: Headers of a message that is let in at sight.
_PLAIN: dict[str, Any] = {
    "task": "fuzz.task",
    "retries": 0,
    "replaced_task_nesting": 0,
    "eta": None,
    "shadow": None,
    "timelimit": [None, None],
}

_text = st.text(max_size=12)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text | st.sampled_from(["fuzz.task", "json"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)


#: field of a message, or of its headers or properties -> values that somebody may have meant.
_MEANT: dict[tuple[str, ...], st.SearchStrategy[Any]] = {
    ("body",): st.sampled_from([body.decode("latin-1").replace("%d", "1") for body in BODIES.values()])
    | st.sampled_from(["[[1], {}, null]", "[]", "null", "[[], {}]", '{"task": "fuzz.task"}', "{"])
    | _text,
    ("content-type",): st.sampled_from(["application/x-python-serialize", "text/plain", "application/data"]),
    ("content-encoding",): st.sampled_from(["utf-8", "binary", "latin-1"]),
    ("headers",): _json,
    ("properties",): _json,
    ("headers", "id"): _text,
    ("headers", "task"): st.sampled_from(["fuzz.nowhere", "fuzz.task\n"]),
    ("headers", "eta"): st.sampled_from(["9999-12-31T23:59:59-10:00", "2020-01-01T00:00:00+00:00", "soon"]),
    ("headers", "expires"): _text,
    ("headers", "retries"): st.integers(),
    ("headers", "timelimit"): st.just([1, 2, 3]),
    ("headers", "compression"): st.sampled_from(["gzip", "application/x-bz2"]),
    ("headers", "poison_mid"): _text,
    ("headers", "poison_release"): st.integers(0, 3),
    ("headers", "__type__"): st.just("datetime"),
    ("headers", "__value__"): _json,
    ("properties", "correlation_id"): _text,
    ("properties", "body_encoding"): st.just("base64"),
    ("properties", "delivery_info"): st.just({"redelivered": True}),
}
#: Half surrogate pairs, which are good JSON; lists in each other; and what is too long to be a name.
_odd = st.sampled_from([*KINDS.values(), "\ud800", "a\udcff", nested(200), "x" * 5000])
_changes = st.sampled_from([*_MEANT]).flatmap(
    lambda path: st.tuples(st.just(path), _MEANT[path] | _json | _odd | st.just(GONE))
) | st.tuples(st.sampled_from([("headers", name) for name in (*CELERYS, *OURS)]), _json | _odd)


def _changed(changes: list[tuple[tuple[str, ...], Any]], number: int) -> bytes:
    """Return a task's message, stamped, in which these fields are others, or gone."""
    headers = {**_PLAIN, "id": f"id-{number}"}
    message: dict[str, Any] = {
        "body": CALL,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {**headers, MID: new_mid(headers)},
        "properties": {"delivery_tag": "t", "delivery_info": {"routing_key": "celery"}},
    }
    for (*parents, name), value in changes:
        holder = message.get(parents[0]) if parents else message
        if isinstance(holder, dict):
            holder.pop(name, None)
            # A copy: a later change may go into it, and other examples have the same object.
            holder |= {} if value == GONE else {name: deepcopy(value)}
    return json.dumps(message).encode()


_messages = st.builds(_changed, st.lists(_changes, max_size=3), st.integers(0, 10**9))
_items = st.binary(max_size=40) | _json.map(lambda value: json.dumps(value).encode()) | _messages | _messages


@pytest.fixture
def site(redis_url: str) -> Iterator[Site]:
    made = Site(redis_url, keep_unprocessable=10**9)
    yield made
    made.close()


def _is_told(quarantine: Quarantine, mid: str) -> None:
    """Whatever it is, a person can look at it."""
    detail = quarantine.detail(mid)
    assert detail.stored is not None
    json.dumps(detail.record.as_dict())
    assert [*preview(detail.stored)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("examples", sampled([FEW], [MANY]))
def test_NEW_5_whatever_is_received_reaches_a_pool_or_is_kept(
    site: Site, request: pytest.FixtureRequest, examples: int
) -> None:
    # Logs quote what cannot be encoded, and pytest-xdist ends when it is to carry that.
    logging.disable(logging.CRITICAL)
    request.addfinalizer(lambda: logging.disable(logging.NOTSET))
    quarantine = Quarantine(site.app)

    @settings(max_examples=examples, suppress_health_check=[*HealthCheck])
    @example(b"")
    @example(b'{"properties": {}, "headers": {"task": "fuzz.task", "id": "i"}, "body": "[[], {}, {}]"}')
    @example(b'{"properties": {}, "body": "\\ud800", "content-type": "application/json"}')
    @example(b'{"properties": {"delivery_info": {"redelivered": []}}, "body": "", "content-type": "\\ud800"}')
    @example(b'{"properties": {}, "headers": {"task": [], "id": "i", "poison_release": true}, "body": "[]"}')
    @given(_items)
    def receives(item: bytes) -> None:
        site.requested.clear()
        site.problems.clear()  # else each later example fails for an earlier one's
        known = {record.mid for record in quarantine.list()}
        message = site.receive(item)
        assert message.acknowledged, "it would be delivered for ever"
        kept = [record for record in quarantine.list() if record.mid not in known]
        assert not site.problems, site.problems
        assert len(site.requested) + len(kept) == 1 or _is_a_copy(message, known), item
        for record in kept:
            _is_told(quarantine, record.mid)
            if message.content_type == ITEM:
                assert quarantine.message(record.mid).body == item

        site.ledger.client.flushdb() if len(known) > 10 else None

    receives()


def _is_a_copy(message: Any, known: set[str]) -> bool:
    """Whether its id, or all that it says in a redelivered message, stands for one that is kept."""
    from celery_poison.keep.stored_message import identity_of

    return identity_of(message).mid in known
