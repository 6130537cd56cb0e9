"""What every page must keep: its links lead somewhere, its code is code, its names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from celery_poison.cli.celery_command import poison
from celery_poison.cli.standalone import main as standalone
from tests.docs.pages import DOCS, PAGES, ROOT, Link, anchors, blocks, indented, links, prose, text, words

TERMS = """
activation interval, attempt, blame, candidate, cause, convict, crash, dead letter, delivery, discard, fail,
failover, failure, fingerprint, guarded, incarnation, incident, journal, ledger, lineage, message, mid,
monitor, poison, probation, put back, quarantine, redelivered, release, rollback, start, strike, tombstone,
trial, unguarded, verdict
"""


@pytest.mark.parametrize("link", links(), ids=lambda link: f"{link.page.name}-{link.target}")
def test_every_relative_link_leads_to_a_file_and_to_a_heading_of_it(link: Link) -> None:
    if re.match(r"[a-z]+:", link.target):
        return
    path, _, anchor = link.target.partition("#")
    target = (link.page.parent / path).resolve() if path else link.page
    assert target.exists(), f"{link.page.name} leads to {link.target}, which does not exist"
    if anchor:
        assert anchor in anchors(target.read_text(encoding="utf-8")), (
            f"{target.name} has no heading #{anchor}"
        )


def test_every_test_that_a_page_names_exists() -> None:
    known = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    named = {
        (page.name, name) for page in PAGES for name in re.findall(r"`(test_\w+)…`", page.read_text("utf-8"))
    }
    missing = {each for each in named if not any(name.startswith(each[1]) for name in known)}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_compiles(page: Path) -> None:
    for number, block in enumerate(blocks(page.read_text(encoding="utf-8"), "python"), 1):
        compile(block, f"{page.name}, block {number}", "exec")


def test_every_page_can_be_reached_from_the_index() -> None:
    assert {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"index.md"} <= _linked_from(
        "index.md"
    )


def _linked_from(page: str) -> set[str]:
    return {link.target.partition("#")[0] for link in links() if link.page == DOCS / page}


def test_the_readme_has_its_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    demo = "python -m venv .venv && .venv/bin/pip install -q '.[demo]' && .venv/bin/celery-poison demo"
    tests = "python -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && .venv/bin/pytest -n 6"
    assert f"\n    {demo}\n" in readme
    assert f"\n    {tests}\n" in readme


def test_the_glossary_explains_each_of_our_words_once_in_alphabetical_order() -> None:
    explained, of_the_code = (_explained(page) for page in ("glossary.md", "life-of-a-message.md"))
    wanted = {term.strip() for term in TERMS.replace("\n", " ").split(",")}
    assert wanted - set(explained) == set()
    assert [explained, of_the_code] == [sorted(set(explained)), sorted(set(of_the_code))]
    assert {*explained} & {*of_the_code} == set()


def _explained(page: str) -> list[str]:
    return re.findall(r"^\*\*([^*]+)\*\*:", text(page), re.MULTILINE)


# --- what pages name exists -----------------------------------------------------------------------------

_ROOMS = ("celery_poison", "docs", "examples", "tests", "benchmarks", ".ci")
_PATH = re.compile(rf"(?:{'|'.join(map(re.escape, _ROOMS))})/[\w./-]*")
_TYPED = re.compile(r"(celery (?:-A \w+ )?poison|celery-poison)((?: [^\s`|]+)+)")
_MODULE = re.compile(r"python -m ((?:tests|examples|celery_poison|benchmarks)[\w.]*)")
_SCRIPT = re.compile(r"python ((?:benchmarks|examples)/\S+\.py)((?: [^\s`|]+)*)")


def _all_text() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        yield page, page.read_text(encoding="utf-8")


def test_every_path_of_the_repository_that_a_page_names_exists() -> None:
    named = {(page.name, path.rstrip("./")) for page, text in _all_text() for path in _PATH.findall(text)}
    assert len(named) > 20
    assert [one for one in sorted(named) if not (ROOT / one[1]).exists()] == []


def test_every_module_that_a_page_runs_exists() -> None:
    named = {name for _, text in _all_text() for name in _MODULE.findall(text)}
    assert named
    assert [name for name in named if find_spec(name) is None] == []


def test_every_option_of_a_script_that_a_page_types_is_one_of_the_scripts_own() -> None:
    found = {
        (path, word)
        for _, text in _all_text()
        for path, words in _SCRIPT.findall(text)
        for word in words.split()
        if word.startswith("--")
    }
    assert found
    unknown = [(path, word) for path, word in found if f'"{word}"' not in (ROOT / path).read_text("utf-8")]
    assert unknown == []


def _typed() -> Iterator[tuple[str, click.Group, list[str]]]:
    """What follows our commands wherever a page sets one as code."""
    for page, told in _all_text():
        for code in [
            *words(prose(told).replace("\n", " ")),
            *(line for block in indented(told) for line in block),
        ]:
            if match := _TYPED.search(code):
                group = standalone if match.group(1) == "celery-poison" else poison
                yield page.name, group, match.group(2).split("#")[0].split()


def test_every_command_and_option_of_ours_that_a_page_types_exists() -> None:
    typed = [*_typed()]
    assert len(typed) > 50
    wrong = [f"{page}: {' '.join(line)}" for page, group, line in typed if not _exists(group, *line)]
    assert wrong == []


def _exists(group: click.Group, name: str = "", *rest: str) -> bool:
    """Whether this can be typed; what is not in small letters stands for any command."""
    if not name.isidentifier() or not name.islower():
        return True
    command = group.get_command(click.Context(group), name)
    if isinstance(command, click.Group) and not (rest and rest[0].startswith("-")):
        return _exists(command, *rest)
    if command is None or command.context_settings.get("ignore_unknown_options"):
        return command is not None  # Flower's own options
    options = {word.strip("[]|,").partition("=")[0] for word in rest if word.strip("[]|,").startswith("--")}
    known = {text for each in command.params for text in (*each.opts, *each.secondary_opts)}
    return options <= known | {"--help"}
