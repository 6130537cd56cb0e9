"""Pages, and what the program prints, are in plain English: none of the turns of phrase in english.py."""

from __future__ import annotations

import pytest

from tests.docs import english
from tests.docs.english import PATTERNS, Hit

SENTENCES = {
    "told": "What was told is in the ledger.",
    "tells": "All of them tell the same; this one tells more.",
    "what is of it": "A broker says what became of it.",
    "whoever": "Whoever kills a trial convicts it.",
    "nobody": "Somebody killed it.",
    "for want of": "A kill for want of memory counts.",
    "must bear": "Tasks must bear that.",
    "so it is with": "So it is with one that slept.",
    "who, of a thing": "a process who sleeps",
    "begins with Who": "It ends. Who sends hears of it.",
    "begins with What": "It ends. What was sent stays.",
    "begins with Of": "It ends. Of a block it is the opposite.",
}


def test_no_page_has_a_turn_of_phrase_that_is_not_waived() -> None:
    hits = {str(hit) for hit in english.in_pages()}
    waived = english.waived()
    assert sorted(hits - waived) == [], "mend it, or waive it in tests/docs/english_waivers.txt with a reason"
    assert sorted(waived - hits - {str(hit) for hit in english.in_package()}) == [], "waived and not there"


def test_what_the_program_prints_has_none() -> None:
    assert sorted({str(hit) for hit in english.in_package()} - english.waived()) == [], (
        "say it with a thing as the subject, or waive it in tests/docs/english_waivers.txt with a reason"
    )


def test_fewer_and_fewer_docstrings_begin_with_a_pronoun() -> None:
    lines = english.pronouns_in_package()
    assert len(lines) <= english.MOST_PRONOUNS, f"a thing or a verb comes first; these do not: {lines}"


def test_of_a_docstring_its_first_words_count() -> None:
    code = '"""What is sent."""\ndef f():\n    """Return what is sent."""\ndef g():\n    """Return it."""\n'
    code += 'def h():\n    """Return the delay."""\n'
    assert english.begin_with_a_pronoun(code) == ["What is sent.", "Return what is sent.", "Return it."]


@pytest.mark.parametrize("name", PATTERNS)
def test_each_pattern_finds_its_kind(name: str) -> None:
    assert PATTERNS[name].search(SENTENCES[name])


@pytest.mark.parametrize(
    "sentence",
    ["Who is guilty?", "What is it?", "Of course.", "It may tell them apart.", "the person who acts"],
)
def test_plain_questions_and_people_are_left_alone(sentence: str) -> None:
    assert [name for name, pattern in PATTERNS.items() if pattern.search(sentence)] == []


def test_code_addresses_and_headings_of_a_page_are_not_looked_at() -> None:
    page = "# What it told\n\n```text\ntold\n```\n\n    told\n\nA [link](told.md) and `told`.\n"
    assert english.sentences(page) == ["A link and X."]


def test_of_a_module_only_what_it_prints_is_looked_at() -> None:
    code = '"""Told."""\n\ndef f():\n    """What was told."""\n    raise Error("this was told to nobody")\n'
    assert english.printed(code) == ["this was told to nobody"]
    command = '@click.command()\ndef f():\n    """Say what was told."""\n'
    assert english.printed(command) == ["Say what was told."]


def test_a_hit_is_printed_as_a_waiver_is_written() -> None:
    assert str(Hit("docs/a.md", "told", "it was told")) == "docs/a.md | told | it was told"
