"""docs/cli.md lists the verbs, their options and the fields of their JSON."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import click
import pytest
from click.testing import CliRunner

from celery_poison.cli.celery_command import HELP, poison
from celery_poison.desk.decisions import Outcome
from celery_poison.desk.search import AGE, GROUP, NUMBER_FIELDS, TEXT_FIELDS, Group
from celery_poison.model import MessageRecord
from tests.docs import cli_page
from tests.docs.cli_page import VERBS
from tests.docs.pages import rows, section, text, words


def test_what_the_page_takes_from_the_help_is_what_the_commands_say() -> None:
    page = text("cli.md")
    assert page == cli_page.anew(page), "run `python -m tests.docs.cli_page`"


def test_every_verb_is_listed_in_the_order_of_the_help() -> None:
    assert re.findall(r"\[`(\w+)`\]\(#\1\)", section(text("cli.md"), "Verbs")) == list(VERBS)


def test_every_command_has_its_help_on_the_page() -> None:
    there = re.findall(r"^<!-- help: ([\w -]+) -->$", text("cli.md"), re.MULTILINE)
    assert there == [*cli_page.commands(), "celery-poison demo"]


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_has_an_example(verb: str) -> None:
    command: Any = poison.get_command(click.Context(poison), verb)
    for name, each in {"": command, **getattr(command, "commands", {})}.items():
        told = CliRunner().invoke(each, ["--help"], **HELP)
        assert told.exit_code == 0 and f"celery -A proj poison {verb} {name}".strip() in told.output, name


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "pipeline"])
def test_a_verb_stands_with_exactly_its_options(verb: str) -> None:
    part = section(text("cli.md"), verb)
    listed = re.findall(r"^- `[^`]*?(--[\w-]+)", part, re.MULTILINE)
    assert {*listed, *_also(part)} == _options(verb)


def test_the_options_that_many_verbs_share_are_explained_once() -> None:
    explained = re.findall(r"^- `(--[\w-]+)", section(text("cli.md"), "Shared options"), re.MULTILINE)
    assert len(explained) == len(set(explained)) and set(explained) == _also(text("cli.md"))


def _also(part: str) -> set[str]:
    """The options that lines of the page name without explaining them."""
    lines = re.findall(r"^- \[also\]\(#shared-options\) (.*)$", part, re.MULTILINE)
    return {name for line in lines for name in cli_page.expanded(line)}


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
    shown = [word for row in rows(section(text("cli.md"), "JSON")) for word in words(row[0])]
    assert shown == [field.name for field in fields(MessageRecord)]


def test_an_outcome_is_told() -> None:
    page = section(text("cli.md"), "JSON")
    _, _, told = page.partition("prints an array of outcomes:")
    assert words(told)[: len(fields(Outcome))] == [field.name for field in fields(Outcome)]


def test_a_group_is_told_field_by_field() -> None:
    _, _, told = section(text("cli.md"), "groups").partition("A group in JSON has:")
    assert [word for word in words(told) if not word.startswith("--")] == [f.name for f in fields(Group)]


def test_the_fields_of_filters_are_told() -> None:
    shown = [tuple(words(row[0])) for row in rows(section(text("cli.md"), "Filters"))]
    assert shown == [TEXT_FIELDS, NUMBER_FIELDS, (AGE,), (GROUP,)]


def test_every_exit_status_is_told() -> None:
    from celery_poison.cli.command import REFUSED, UNREACHABLE, WRONG_USAGE

    shown = [row[0] for row in rows(section(text("cli.md"), "Exit status"))]
    assert shown == [str(n) for n in (0, REFUSED, WRONG_USAGE, UNREACHABLE)]


def test_no_page_types_a_verb_that_does_not_exist() -> None:
    from tests.docs.pages import PAGES

    for page in PAGES:
        typed = set(re.findall(r"celery -A \w+ poison (\w+)", page.read_text(encoding="utf-8")))
        assert typed - {"VERB"} <= set(VERBS), page.name
