"""docs/journal.md is a contract: its fields, their order, and which of them each event fills."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from celery_poison.decide import End
from celery_poison.ledger import Keys
from celery_poison.ledger.journal import FIELDS, SCHEMA_VERSION
from celery_poison.model import Attempt, Ended
from celery_poison.policy import Policy
from celery_poison.settings import Settings
from celery_poison.worker.recorder import Given, Recorder, Ticket
from tests.docs.pages import PACKAGE, edges, rows, section, text, words

BODY = '[[5, "a"], {"page": null}, {}]'

LUA = PACKAGE / "ledger" / "lua"

_TABLE = re.compile(r"\{(event = .*?)\}\)", re.DOTALL)
_ASSIGNED = re.compile(r"\b(?:line|told) = \{(event = .*?)\}", re.DOTALL)
#: What a script is told beside a start, and journals if it is there.
KNOWN = {"memory_kb", "fingerprint", "shape", "release", "evidence"}


def _events() -> dict[str, list[str]]:
    return {words(row[0])[0]: row for row in rows(section(text("journal.md"), "Events"))}


def _fields(event: str) -> set[str]:
    """The fields that an event fills, those of the sets that its row names among them."""
    part = section(text("journal.md"), "Events")
    listed = re.findall(r"^- (`[A-Z]+`: .*?)(?=\n- |\n\n)", part, re.MULTILINE | re.DOTALL)
    sets = {words(item)[0]: words(item)[1:] for item in listed}

    def whole(names: list[str]) -> set[str]:
        return {field for name in names for field in (whole(sets[name]) if name in sets else {name})}

    return whole(words(_events()[event][2]))


def test_the_fields_in_the_docs_are_those_of_the_code_in_their_order() -> None:
    shown = [(row[0], words(row[1])[0]) for row in rows(section(text("journal.md"), "Fields"))]
    assert shown == [(str(n), name) for n, name in enumerate(FIELDS, 1)]


def test_the_lua_scripts_write_the_fields_in_the_same_order() -> None:
    call = re.search(r"XADD.*?\)\n", (LUA / "_journal.lua").read_text(encoding="utf-8"), re.DOTALL)
    assert call
    assert tuple(re.findall(r"'(\w+)', (?:e\.|')", call.group().partition("'*',")[2])) == FIELDS


def test_the_docs_are_about_the_version_that_is_written() -> None:
    assert f"# Journal, schema v{SCHEMA_VERSION}\n" in text("journal.md")
    lua = (LUA / "_journal.lua").read_text(encoding="utf-8")
    assert f"'v', '{SCHEMA_VERSION}'" in lua


def test_every_event_has_a_meaning() -> None:
    assert [event for event, row in _events().items() if not row[3]] == []


def test_an_event_that_is_a_transition_is_told_with_the_state_it_leads_to() -> None:
    for _, next_, event, _ in edges().values():
        if event is not None:
            assert words(_events()[event][1]) == [next_]


# --- which fields an event fills ---------------------------------------------------------------------


def _filled_by_scripts() -> Iterator[tuple[str, set[str]]]:
    """Event, and the fields that its script hands to `journal`."""
    for path in sorted(PACKAGE.rglob("lua/[a-z]*.lua")):
        code = path.read_text(encoding="utf-8")
        for table in [*_TABLE.findall(code), *_ASSIGNED.findall(code)]:
            names = set(re.findall(r"(?:^|, |,\n)\s*(\w+) = ", table))
            if f"line = {{{table}" in code:
                names |= set(re.findall(r"\bline\.(\w+) = ", code))
            if re.search(r"add_known\((line|told), ARGV", code):
                names |= KNOWN
            for event in _events_of(table, code):
                yield event, names - {"event"}


def _events_of(table: str, code: str) -> list[str]:
    word = re.match(r"event = '(\w+)'", table)
    if word:
        return [word.group(1)]
    # The event is an argument: the header says which there are.
    journals = re.search(r"^-- JOURNALS (.*)$", code, re.MULTILINE)
    assert journals
    return journals.group(1).split(" | ")


def test_each_event_of_a_script_fills_the_fields_that_the_docs_say() -> None:
    filled: dict[str, set[str]] = {}
    for event, names in _filled_by_scripts():
        filled[event] = names if event != "paused" else filled.get(event, set()) | names
    assert set(filled) == set(_events())
    by_a_monitor = filled.pop("finished")  # it knows less than the process that ends a task
    assert by_a_monitor - {"note"} < _fields("finished")
    for event, names in filled.items():
        assert names == _fields(event), event


class _Paper:
    """Takes down what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, commands: bytes) -> bool:
        self.sent.append(commands)
        return True


def _finish(ended: Ended = Ended.DONE, maxlen: int | None = 1000) -> list[list[bytes]]:
    paper: Any = _Paper()
    policies: dict[str, tuple[Policy, bool]] = {"shop.charge": (Policy(), True)}
    settings = Settings(code_version="1.2%3", journal="incidents" if maxlen is None else "attempts")
    recorder = Recorder(settings, Keys(), paper, "w1@host/0a1b", policies)
    recorder.secret = b"secret"
    ticket = Ticket("mid", "0a1b.7", "celery", Attempt(), len(BODY))
    given = Given(BODY, "application/json", {"poison_sent": 1792000000000}, mark_kb=0)
    recorder.finish(ticket, "id", "shop.charge", ended, "success", 0.25, given=given)
    return _commands(b"".join(paper.sent))


def _commands(wire: bytes) -> list[list[bytes]]:
    """Read Redis' wire format, as far as we write it."""
    found = []
    while wire:
        count, _, wire = wire.partition(b"\r\n")
        command = []
        for _ in range(int(count[1:])):
            size, _, wire = wire.partition(b"\r\n")
            command.append(wire[: int(size[1:])])
            wire = wire[int(size[1:]) + 2 :]
        found.append(command)
    return found


def test_a_finished_run_is_written_in_the_same_form() -> None:
    (entry,) = [command for command in _finish() if command[0] == b"XADD"]
    values = entry[6:]
    names = [name.decode() for name in values[::2]]
    assert tuple(names) == FIELDS
    filled = {name for name, value in zip(names, values[1::2], strict=True) if value}
    assert filled - {"v", "event"} == _fields("finished")
    assert values[:4] == [b"v", str(SCHEMA_VERSION).encode(), b"event", b"finished"]
    told = dict(zip(names, values[1::2], strict=True))
    assert (told["shape"], told["release"]) == (b"int,str;page=none", b"1.2%3")
    assert told["payload_bytes"] == b"%d" % len(BODY)


@pytest.mark.parametrize("ended", [Ended.ROLLED_BACK, Ended.INTERRUPTED])
def test_a_run_that_did_not_finish_is_journalled_by_whoever_decides_about_it(ended: Ended) -> None:
    assert [command[0] for command in _finish(ended)] == [b"HSET"]


def test_with_the_journal_of_incidents_a_run_is_only_counted() -> None:
    assert [command[0] for command in _finish(maxlen=None)] == [b"MULTI", b"HSET", b"HINCRBY", b"EXEC"]


def test_every_outcome_of_a_finished_run_is_told() -> None:
    outcomes = {end.outcome for end in End if end.mark is Ended.DONE}
    shown = {
        words(row[0])[0] for row in rows(section(text("journal.md"), "Outcomes")) if row[1] == "finished"
    }
    assert shown == outcomes | {"lost"}
