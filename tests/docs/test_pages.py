"""What every page must keep: its links lead somewhere, its code is code, its names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, Link, anchors, blocks, links, text

TERMS = """
activation interval, admit mark, attempt, blame, boot id, candidate, cause, claim, convict, crash, dead
letter, deferred clean-up, delivery, discard, fail, failover, failure, fencing token, fingerprint,
guarded, incarnation, incident, journal, lease, ledger, lineage, message, mid, monitor, poison,
probation, put back, quarantine, reconnect clean-up, redelivered, release, rollback, start, strike,
tombstone, trial, unguarded, verdict
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_compiles(page: Path) -> None:
    for number, block in enumerate(blocks(page.read_text(encoding="utf-8"), "python"), 1):
        compile(block, f"{page.name}, block {number}", "exec")


def test_every_page_can_be_reached_from_the_index() -> None:
    targets = {link.target.partition("#")[0] for link in links() if link.page == DOCS / "index.md"}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= targets


def test_the_readme_has_its_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    demo = "python -m venv .venv && .venv/bin/pip install -q '.[demo]' && .venv/bin/celery-poison demo"
    tests = "python -m venv .venv && .venv/bin/pip install -q -e '.[dev,demo,spark]' && .venv/bin/pytest -n 5"
    assert f"\n    {demo}\n" in readme
    assert f"\n    {tests}\n" in readme


def test_the_glossary_explains_each_of_our_words_once_in_alphabetical_order() -> None:
    explained = re.findall(r"^\*\*([^*]+)\*\*:", text("glossary.md"), re.MULTILINE)
    wanted = {term.strip() for term in TERMS.replace("\n", " ").split(",")}
    assert wanted - set(explained) == set()
    assert explained == sorted(set(explained))
