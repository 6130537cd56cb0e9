"""Whatever stands in Redis, in a spool or in an exported file is read, or refused in words.

``POISON_FUZZ_EXAMPLES=100000`` makes these, and what tests/worker fuzzes, as long as one likes.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_poison.causes import Evidence
from celery_poison.desk.evidence import sentence_of
from celery_poison.desk.lines import BadExport
from celery_poison.desk.lines import fields_of_line as fields_of
from celery_poison.desk.search import BadFilter, Filter
from celery_poison.desk.sentences import sentence
from celery_poison.extensions.holds.pauses import read_pauses
from celery_poison.extensions.proposals.proposal import Proposal
from celery_poison.keep.spool import Spool, Spooled
from celery_poison.ledger.second_person import Wish
from celery_poison.model import Start
from celery_poison.rules.blocks import read_rules
from tests.docs.pages import rows, section, text, words

#: As long as one likes.
pytestmark = pytest.mark.timeout(7200)

fuzzed = settings(
    max_examples=int(os.environ.get("POISON_FUZZ_EXAMPLES", "100")), suppress_health_check=[*HealthCheck]
)
_names = st.sampled_from(
    (
        *("since_ms", "until_ms", "actor", "note", "task", "convictions", "version", "at_ms", "rules"),
        *("v", "id", "mid", "queue", "cause", "reason", "fields", "route", "known", "body_base64"),
        *("headers", "properties", "evidence", "deliveries", "policies"),
    )
)
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400)
_json: Any = st.recursive(
    _leaves, lambda more: st.lists(more, max_size=3) | st.dictionaries(_names | st.text(max_size=4), more)
)
_stored = st.binary(max_size=40) | _json.map(lambda value: json.dumps(value).encode())
_fields = st.sampled_from(
    ["task:a", "fingerprint:00", "queue:a", "endpoint:w q", "version", "", ":"]
) | st.text(max_size=8)


@fuzzed
@given(st.dictionaries(_fields, _stored, max_size=3))
def test_what_stands_for_a_rule_or_a_pause_is_one_or_is_complained_of(raw: dict[str, bytes]) -> None:
    rules, complaints = read_rules(raw, 0.0)
    assert len(rules) + len(complaints) <= len(raw)
    read_pauses(raw, 0.0)


_wish = st.fixed_dictionaries(
    {"actor": _leaves, "act": _leaves, "note": _leaves, "at_ms": st.just(1) | _leaves},
    optional={"until_ms": st.just(1) | _leaves, "messages": st.just(1) | _leaves},
)


@fuzzed
@given(_stored | _wish.map(lambda value: json.dumps(value).encode()))
def test_what_stands_for_what_somebody_asked_for_is_told_or_left_out(raw: bytes) -> None:
    with suppress(ValueError):
        wish = Wish.decode(raw)
        assert wish.story and wish.how and json.dumps(wish.as_dict())


_sheets = st.fixed_dictionaries(
    {"version": _leaves, "at_ms": _leaves, "until_ms": st.just(1) | _leaves, "actor": _leaves},
    optional={"rules": st.lists(_json, max_size=2), "policy": _json, "reasons": st.lists(_leaves)},
)


@fuzzed
@given(
    _stored
    | _sheets.map(lambda sheet: json.dumps({"rules": [], "policy": {}, "reasons": [], **sheet}).encode())
)
def test_what_stands_for_a_proposal_or_for_evidence_is_one_or_is_left(raw: bytes) -> None:
    Proposal.read(raw, 0.0)
    with suppress(UnicodeDecodeError):
        sentence_of(Evidence.decode(raw.decode()))


@fuzzed
@given(st.dictionaries(_names, _json, max_size=8), st.booleans())
def test_what_stands_for_an_exported_message_is_one_or_is_refused_in_words(
    found: dict[str, Any], whole: bool
) -> None:
    needed = {"v": 1, "body_base64": "", "id": "i", "mid": "m", "queue": "q", "cause": "oom"} if whole else {}
    with suppress(BadExport):
        assert isinstance(fields_of(json.dumps({**found, **needed}))["body"], bytes)


@fuzzed
@given(st.text(max_size=30))
def test_what_is_typed_as_a_filter_is_one_or_is_refused_in_words(text: str) -> None:
    with suppress(BadFilter):
        Filter.parse(text)
    with suppress(BadFilter):
        Filter.search(text)


_EVENTS = [words(row[0])[0] for row in rows(section(text("journal.md"), "Events"))]


@fuzzed
@given(st.sampled_from(_EVENTS), st.text(max_size=12), st.text(max_size=12))
def test_an_entry_of_the_journal_is_told_whatever_stands_in_it(event: str, one: str, other: str) -> None:
    fields = ("cause", "evidence", "runtime_ms", "note", "actor", "worker", "incident", "outcome")
    entry = {name: (one, other)[number % 2] for number, name in enumerate(fields)}
    more = dict.fromkeys(("task", "queue", "crashes", "strikes", "failures", "id", "mid"), one)
    assert sentence({**more, **entry, "event": event}).isprintable()


def test_a_file_of_the_spool_is_brought_or_set_aside_whatever_stands_in_it(tmp_path: Path) -> None:
    spool, ledger = Spool(str(tmp_path / "spool")), Mock(quarantine=_quarantine)
    start = Start.of("b00t.1", "w1@test/b00t", "i", "shop.convert", queue="celery")
    good: Any = json.loads(Spooled("m", start, {"fields": {}, "route": ["", None]}).encode())

    @fuzzed
    @given(_stored | st.dictionaries(_names, _json, max_size=2).map(lambda odd: _with(good, odd)))
    def brought(raw: bytes) -> None:
        (spool.path / f"{0:032}.json").write_bytes(raw)
        [*spool.bring_to(ledger)]
        assert not [*spool.path.glob("*.json")]

    brought()


def _quarantine(mid: str, start: Start, *, cause: str, reason: str, fields: Any, **known: Any) -> bool:
    """As the ledger takes it, and no further."""
    start.encode()
    return True


def _with(good: list[Any], odd: dict[str, Any]) -> bytes:
    return json.dumps([good[0], good[1], {**good[2], **odd}]).encode()


@pytest.mark.parametrize("number", ["1e999", str(10**400)])
def test_a_number_that_is_too_large_makes_no_rule_and_no_pause(number: str) -> None:
    text = f'{{"convictions": {number}, "since_ms": {number}, "until_ms": {number}}}'
    rules, complaints = read_rules({"task:a": text}, 0.0)
    assert not rules and complaints
    assert not read_pauses({"queue:a": text}, 0.0)[0]
