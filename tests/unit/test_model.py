"""A start has one constructor, one encoding, and the same names in Python and in Lua."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from celery_poison.model import Parked, ParkingState, Phase, Start
from tests.docs.pages import PACKAGE

TEXT = st.text(max_size=20)
COUNT = st.integers(0, 1 << 40)
STARTS = st.builds(
    Start.of,
    st.from_regex(r"[0-9a-f]{16}(r\d)?\.\d{1,6}", fullmatch=True),
    TEXT,
    TEXT,
    TEXT,
    queue=TEXT,
    phase=st.sampled_from(Phase),
    pid=COUNT,
    at_ms=COUNT,
    deliveries=COUNT,
    alone=st.integers(0, 2),
    max_crashes=COUNT,
    max_failures=COUNT,
    payload_bytes=COUNT,
    diverts=st.booleans(),
)


@given(STARTS)
def test_a_start_is_decoded_as_it_was_encoded(start: Start) -> None:
    assert Start.decode(start.encode()) == start
    assert Start.decode(start.encode().decode()) == start


@given(STARTS)
def test_a_start_is_a_json_array_in_the_order_of_its_fields(start: Start) -> None:
    raw = start.encode()
    assert json.loads(raw) == list(start)
    # clean_up.lua finds the token without decoding the rest.
    assert raw.decode()[6 : 6 + len(start.token)] == start.token


@given(STARTS, COUNT, st.sampled_from(ParkingState))
def test_a_parking_is_decoded_with_its_start(start: Start, number: int, state: ParkingState) -> None:
    assert Parked.decode(json.dumps([state, number, start])) == Parked(state, number, start)


def test_the_scripts_know_the_fields_of_a_start_by_the_same_names() -> None:
    lua = (PACKAGE / "ledger" / "lua" / "_start.lua").read_text(encoding="utf-8")
    listed = lua.partition("local START = {")[2].partition("}")[0]
    assert tuple(re.findall(r"'(\w+)'", listed)) == Start._fields


def test_no_script_reads_a_start_by_position() -> None:
    for path in PACKAGE.rglob("lua/*.lua"):
        assert not re.search(r"\b(e|current|lost|entry)\[\d+\]", path.read_text(encoding="utf-8")), path.name
