"""The reference pages say what the code does."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_poison import causes, decide, headers, signals
from celery_poison.decide import Action, End, Facts, judge
from celery_poison.desk.advice import decision
from celery_poison.desk.reading import Detail
from celery_poison.ledger import Keys, scripts
from celery_poison.model import Ended, History, Limits, MessageRecord, Phase, Start
from celery_poison.settings import PREFIX, Settings
from celery_poison.states import State
from celery_poison.worker import inspecting
from celery_poison.worker.sending import WAYS, Stage
from tests.docs import settings_table
from tests.docs.pages import PACKAGE, PAGES, blocks, edges, rows, section, text, words

# --- states.md ---------------------------------------------------------------------------------------


def _script(step: str) -> Path:
    return PACKAGE / "ledger" / "lua" / f"{step}.lua"


def test_SAP_1_each_edge_in_the_docs_is_what_the_script_of_its_step_says_of_itself() -> None:
    for prior, next_, event, step in edges().values():
        if step == "start":
            continue  # an unanswered write
        lua = _read(_script(step))
        head = re.match(rf"-- {step}: (\w+(?: \| \w+)*) -> (\w+)", lua)
        assert head, f"{step}.lua does not begin with its states"
        assert ({*head[1].split(" | ")}, head[2]) == ({str(state) for state in prior}, str(next_)), step
        assert event in re.findall(r"\w+", re.findall(r"^-- JOURNALS (.*)", lua, re.M)[0]), step


def test_SAP_1_the_drawing_has_every_edge_and_no_other() -> None:
    drawing = blocks(text("states.md"), "")[0]
    assert dict(re.findall(r"\b([a-z]) (\w+)", drawing)) == {
        letter: step for letter, (_, _, _, step) in edges().items()
    }
    assert set(re.findall(r"\b[A-Z]{4}\b", drawing)) == set(State)


def test_every_step_is_a_lua_script_but_the_unanswered_start() -> None:
    steps = {step for _, _, _, step in edges().values()}
    names = {*scripts.names()}
    assert steps - names == {"start"}


def test_every_state_is_explained() -> None:
    explained = [words(row[0])[0] for row in rows(text("states.md").partition("\n## ")[0])]
    assert explained == [str(state) for state in State]


def test_the_ways_of_a_request_are_drawn() -> None:
    (block,) = blocks(text("life-of-a-message.md"), "ways")
    drawn = {}
    for line in block.splitlines():
        start, _, ends = line.partition("->")
        drawn[Stage(start.strip())] = frozenset(Stage(end.strip()) for end in ends.split(","))
    assert drawn == {stage: ways for stage, ways in WAYS.items() if ways}
    assert set(WAYS) == set(Stage)


def test_every_stage_of_a_request_is_told() -> None:
    table = rows(section(text("life-of-a-message.md"), "A request in its worker"))
    assert [words(row[0])[0] for row in table] == [stage.value for stage in Stage]


# --- settings.md -------------------------------------------------------------------------------------


def test_the_settings_tables_are_the_ones_made_from_the_code() -> None:
    page = text("settings.md")
    assert page == settings_table.anew(page), "run `python -m tests.docs.settings_table`"


def test_every_setting_is_in_one_table_and_no_other() -> None:
    shown = [words(row[0])[0] for row in rows(section(text("settings.md"), "All settings"))]
    assert sorted(shown) == sorted(Settings.by_name())


def test_a_setting_that_the_page_does_not_place_comes_into_its_last_table() -> None:
    page = settings_table.anew(text("settings.md").replace("max_crashes max_failures", "max_failures"))
    assert "| `poison_max_crashes` |" in page.rpartition("### ")[2]


def test_no_page_speaks_of_a_setting_that_does_not_exist() -> None:
    ours = {*Settings.by_name()}
    theirs = {*headers.OURS, *(name for name in vars(inspecting) if name.startswith(PREFIX))}
    for page in PAGES:
        spoken = set(re.findall(r"\bpoison_[a-z_]+\b", page.read_text(encoding="utf-8")))
        assert spoken <= ours | theirs, page.name


# --- keys.md -----------------------------------------------------------------------------------------

_PLACEHOLDERS = {
    "group": ["SHA"],
    "lineage": ["ID"],
    "attempt": ["TOKEN"],
    "tied": ["TOKEN"],
    "message": ["MID"],
    "worker": ["INC"],
    "incident": ["IID"],
    "child": ["INC", "PID"],
    "ended": ["INC"],
    "convictions": ["FP"],
    "lane": ["LANE"],
}
#: Prefixes and channels, which are no keys.
_NO_KEYS = {"prefix", "alive", "children", "endings", "channel", "of"}


def _keys() -> dict[str, str]:
    """Attribute or method of Keys -> the name of its key."""
    keys = Keys("ns", "NAME")
    names = {name: key for name, key in keys.fixed.items() if name not in _NO_KEYS}
    made = {name for name, _ in inspect.getmembers(Keys, inspect.isfunction) if not name.startswith("_")}
    made -= _NO_KEYS
    own = {name: keys.of(name, word) for name, word in keys.of_rooms.items()}
    return names | own | {name: getattr(keys, name)(*_PLACEHOLDERS[name]) for name in made}


def test_the_keys_table_lists_exactly_the_keys_of_the_code() -> None:
    shown = [words(row[0])[0] for row in rows(section(text("keys.md"), "The ledger"))]
    assert sorted(shown) == sorted(_keys().values())


def test_the_keys_have_the_types_that_the_scripts_declare() -> None:
    shown = {words(row[0])[0]: row[1] for row in rows(section(text("keys.md"), "The ledger"))}
    declared = {
        found
        for path in PACKAGE.rglob("lua/*.lua")
        for found in re.findall(r"-- KEYS\[\d+\] (\w+) +(\w+)", _read(path))
    }
    assert ("copy", "hash") in declared, "the message of another mid"
    declared = {("message" if name == "copy" else name, kind) for name, kind in declared}
    assert {name for name, _ in declared} <= set(_keys())
    assert {(name, shown[_keys()[name]]) for name, _ in declared} == declared


def test_a_start_is_told_field_by_field_in_its_order() -> None:
    shown = [(row[0], words(row[1])[0]) for row in rows(section(text("keys.md"), "A start"))]
    assert shown == [(str(n), name) for n, name in enumerate(Start._fields, 1)]


def test_the_letters_of_phases_and_ends_are_told() -> None:
    page = text("keys.md")
    phases = next(row for row in rows(section(page, "A start")) if words(row[1]) == ["phase"])
    assert set(words(phases[2])) == {str(phase) for phase in Phase}
    done = next(row for row in rows(section(page, "The ledger")) if words(row[0]) == ["{ns}:done"])
    assert set(words(done[2])) == {str(ended) for ended in Ended} - {""}


def test_our_headers_are_told() -> None:
    shown = [words(row[0])[0] for row in rows(section(text("keys.md"), "Headers on messages"))]
    assert sorted(shown) == sorted(headers.OURS)


# --- verdict.md --------------------------------------------------------------------------------------

_ENDED = "A run has ended (`disposition`)"
_STRIKES = History(strikes=2, crashes=2, cause="signal:9", proven=1)

#: One message for each row of the table.
_EXAMPLES: dict[str, Facts] = {
    "1": Facts(foreign_start=True, ended=Ended.DONE),
    "2": Facts(kept=State.FAIL),
    "3": Facts(kept=State.NDLV),
    "4": Facts(release=1, last_release=2),
    "5": Facts(park=1, last_park=2),
    "6": Facts(foreign_start=True),
    "7": Facts(payload_bytes=11),
    "8": Facts(history=_STRIKES),
    "9": Facts(history=History(failures=5)),
    "10": Facts(cut_off="frozen"),
    "11": Facts(blocked="task t is blocked by ann"),
    "12": Facts(history=_STRIKES, gate_closed=True),
    "13": Facts(history=History(candidate=True)),
    "14": Facts(),
}
_LIMITS = Limits(max_crashes=2, max_failures=5, max_payload_bytes=10, rerun=False)


def _judge_rows() -> dict[str, list[str]]:
    return {row[0]: row for row in rows(section(text("verdict.md"), "May it be let in? (`judge`)"))}


@pytest.mark.parametrize("number", _EXAMPLES)
def test_a_message_as_in_this_row_of_the_table_gets_its_verdict(number: str) -> None:
    _, _, action, reason = _judge_rows()[number]
    made = judge(_EXAMPLES[number], _LIMITS)
    assert Action(words(action)[0]) is made.action
    pattern = ".+".join(re.escape(part) for part in reason.split("…"))
    assert re.fullmatch(pattern, made.reason), made.reason


def test_the_verdict_table_has_an_example_for_each_row_and_every_action() -> None:
    assert list(_judge_rows()) == list(_EXAMPLES)
    assert {words(row[2])[0] for row in _judge_rows().values()} == {action.value for action in Action}


def test_an_earlier_row_of_the_verdict_table_goes_before_a_later_one() -> None:
    everything = Facts(
        history=History(strikes=9, failures=9, candidate=True, proven=1),
        foreign_start=True,
        ended=Ended.DONE,
        kept=State.FAIL,
        release=1,
        last_release=2,
        park=1,
        last_park=2,
        finished=True,
        payload_bytes=11,
        cut_off="frozen",
        blocked="task t is blocked by ann",
    )
    weaker: dict[str, dict[str, Any]] = {
        "1": {"foreign_start": False, "ended": Ended.NOT, "finished": False},
        "2": {"kept": State.NDLV},
        "3": {"kept": None},
        "4": {"release": 0, "last_release": 0},
        "5": {"park": 0, "foreign_start": True},
        "6": {"foreign_start": False},
        "7": {"payload_bytes": 0},
        "8": {"gate_closed": True},
        "9": {"history": _STRIKES},
        "10": {"cut_off": ""},
        "11": {"blocked": ""},
        "12": {"history": History(candidate=True)},
        "13": {"history": History()},
    }
    facts = everything
    for number, row in _judge_rows().items():
        assert judge(facts, _LIMITS).action is Action(words(row[2])[0]), f"row {number}"
        facts = replace(facts, **weaker.get(number, {}))


def test_every_reason_in_the_code_is_in_the_table() -> None:
    page = text("verdict.md")
    reasons = re.findall(r'reason="([^"]+)"', inspect.getsource(decide))
    assert len(reasons) > 4
    assert [reason for reason in reasons if reason not in page] == []


def test_every_end_of_a_run_is_told_with_what_its_own_process_writes() -> None:
    table = [row for row in rows(section(text("verdict.md"), _ENDED)) if not row[0].isdecimal()]
    told = [(*((words(cell) or [""])[0] for cell in row[:3]), row[3]) for row in table]
    assert told == [(end.word, end.mark.value, end.outcome, end.guilt.value) for end in End]


# --- signals-events.md -------------------------------------------------------------------------------


def test_every_signal_is_told_with_its_arguments_and_whether_it_is_sent() -> None:
    known = {name: value for name, value in vars(signals).items() if hasattr(value, "providing_args")}
    shown = {words(row[0])[0]: row for row in rows(section(text("signals-events.md"), "Signals"))}
    assert set(shown) == set(known)
    code = "".join(_read(path) for path in PACKAGE.rglob("*.py"))
    for name, signal in known.items():
        _, arguments, sent, _ = shown[name]
        assert set(words(arguments)) == set(signal.providing_args), name
        assert (sent == "yes") is (f"signals.{name}" in code), name


# --- journal.md, the words ---------------------------------------------------------------------------


CAUSES = {v for k, v in vars(causes).items() if k.isupper() and not k.startswith("_") and isinstance(v, str)}


def test_every_cause_is_explained() -> None:
    shown = {words(row[0])[0] for row in rows(section(text("journal.md"), "Causes"))}
    assert shown == CAUSES | {"signal:N", "exit:N"}


def test_every_cause_has_a_sentence_of_its_own_and_a_place() -> None:
    assert {*causes.ROWS} == CAUSES, "a row of causes.ROWS for each word"
    assert len({causes.describe(cause) for cause in CAUSES}) == len(CAUSES)
    # What kills, why nobody is to blame, why a message is kept that killed nobody; or a bound that was met.
    of_runs = causes.NOBODYS_FAULT | causes.NO_CONVICTIONS | {*causes.DEATHS}
    assert CAUSES - of_runs == {causes.FAILURES, causes.QUEUE_FULL, causes.NOT_REACHED}


def test_show_names_a_usual_decision_for_every_cause_of_the_playbook() -> None:
    causes = [
        word for row in rows(section(text("howto/playbook.md"), "All causes")) for word in row[0].split(", ")
    ]
    assert len(causes) > 20
    for cause in causes:
        record = MessageRecord(
            id="i", mid="m", task="t", queue="q", state=State.NDLV, cause=cause.strip("`").replace(":N", ":3")
        )
        assert decision(Detail(record, (), None)), cause


def test_the_playbook_has_every_cause_with_which_a_message_may_be_in_quarantine() -> None:
    told = {
        re.sub(r"\d+", "N", word)
        for row in rows(section(text("howto/playbook.md"), "All causes"))
        if len(row) == 3
        for word in words(row[0])
    }
    assert told == CAUSES - {causes.SHUTDOWN, causes.EVICTION, causes.NOT_REACHED} | {"signal:N", "exit:N"}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
