"""docs/cli.md lists the verbs, their options and the fields of their JSON."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import click
import pytest
from click.testing import CliRunner

from celery_poison.cli.celery_command import HELP, VERBS, poison
from celery_poison.model import MessageRecord
from celery_poison.quarantine.acting import Outcome
from celery_poison.quarantine.search import AGE, GROUP, NUMBER_FIELDS, TEXT_FIELDS, Group
from tests.docs.pages import rows, section, text, words

#: Verbs that share a section of the page.
SECTIONS = {
    "fail": "fail, discard",
    "discard": "fail, discard",
    "restore": "restore, purge",
    "purge": "restore, purge",
}


def test_every_verb_is_listed_in_the_order_of_the_help() -> None:
    assert [words(row[0])[0] for row in rows(section(text("cli.md"), "Verbs"))] == list(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_has_an_example(verb: str) -> None:
    command: Any = poison.get_command(click.Context(poison), verb)
    for name, each in {"": command, **getattr(command, "commands", {})}.items():
        told = CliRunner().invoke(each, ["--help"], **HELP)
        assert told.exit_code == 0 and f"celery -A proj poison {verb} {name}".strip() in told.output, name


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "pipeline"])
def test_a_verb_is_told_with_exactly_its_options(verb: str) -> None:
    shown = {words(row[0])[0] for row in rows(section(text("cli.md"), SECTIONS.get(verb, verb)))}
    real = _options(verb)
    if verb == "discard":
        assert "`discard` has no `--force`" in text("cli.md")
        shown -= {"--force"}
    if verb == "restore":
        shown -= {"--older-than", "--export", "--no-copy"}
    if verb == "purge":
        shown -= {"--force"}
    assert shown == real


def test_the_pages_of_the_pipeline_tell_its_options() -> None:
    told = text("pipeline.md") + text("pipeline-tables.md")
    assert {option for option in _options("pipeline") if option not in told} == set()


def _options(verb: str) -> set[str]:
    command = poison.get_command(click.Context(poison), verb)
    assert command is not None
    # The commands of a group are told together.
    commands = getattr(command, "commands", {"": command}).values()
    found = [parameter for each in commands for parameter in each.params]
    options = [parameter for parameter in found if isinstance(parameter, click.Option)]
    return {max(option.opts, key=len) for option in options} - {"--help"}


def test_the_message_object_is_told_field_by_field() -> None:
    shown = [words(row[0])[0] for row in rows(section(text("cli.md"), "JSON"))]
    assert shown == [field.name for field in fields(MessageRecord)]


def test_an_outcome_is_told() -> None:
    page = section(text("cli.md"), "JSON")
    _, _, told = page.partition("an array of outcomes:")
    assert words(told)[: len(fields(Outcome))] == [field.name for field in fields(Outcome)]


def test_a_group_is_told_field_by_field() -> None:
    _, _, told = section(text("cli.md"), "groups").partition("A group in JSON has:")
    assert [word for word in words(told) if not word.startswith("--")] == [f.name for f in fields(Group)]


def test_the_fields_of_filters_are_told() -> None:
    shown = [tuple(words(row[0])) for row in rows(section(text("cli.md"), "Filters"))]
    assert shown == [TEXT_FIELDS, NUMBER_FIELDS, (AGE,), (GROUP,)]


def test_every_exit_status_is_told() -> None:
    from celery_poison.cli.session import REFUSED, UNREACHABLE, WRONG_USAGE

    shown = [row[0] for row in rows(section(text("cli.md"), "Exit status"))]
    assert shown == [str(n) for n in (0, REFUSED, WRONG_USAGE, UNREACHABLE)]


def test_no_page_types_a_verb_that_does_not_exist() -> None:
    from tests.docs.pages import PAGES

    for page in PAGES:
        typed = set(re.findall(r"celery -A \w+ poison (\w+)", page.read_text(encoding="utf-8")))
        assert typed - {"VERB"} <= set(VERBS), page.name
