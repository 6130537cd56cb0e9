"""The pages that are held against the code, and how their tables and blocks are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from celery_poison.states import State

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "celery_poison"
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
        *DOCS.rglob("*.md"),
        *(ROOT / "examples").glob("*.md"),
    ]
)

_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """What stands under a heading of the second level, up to the next one."""
    _, _, rest = page.partition(f"\n## {heading}\n")
    assert rest, f"no heading {heading!r}"
    return rest.partition("\n## ")[0]


def rows(markdown: str) -> list[list[str]]:
    """The cells of every table row, without the heads of the tables."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    ruler = [i for i, line in enumerate(lines) if set(line) <= set("|-: ")]
    heads = {i - 1 for i in ruler} | set(ruler)
    return [_cells(line) for i, line in enumerate(lines) if i not in heads]


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def words(cell: str) -> list[str]:
    """Everything in a cell that is set as code."""
    return re.findall(r"`([^`]+)`", cell)


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [body for kind, body in _FENCED.findall(page) if kind == language]


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return _FENCED.sub("", page)


class Link(NamedTuple):
    page: Path
    target: str


def links() -> list[Link]:
    found = ((page, _LINK.findall(prose(page.read_text(encoding="utf-8")))) for page in PAGES)
    return [Link(page, target) for page, targets in found for target in targets]


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def indented(page: str) -> list[list[str]]:
    """The indented blocks outside of fences: what the reader types."""
    found: list[list[str]] = [[]]
    for line in prose(page).splitlines():
        if line.startswith("    "):
            found[-1].append(line.strip())
        elif found[-1]:
            found.append([])
    return [block for block in found if block]


_EDGE = re.compile(r"^(\w): (\w+(?:, \w+)*) -> (\w+)\s+(\w+)\s+(\w+|-)$")


def edges() -> dict[str, tuple[frozenset[State], State, str | None, str]]:
    (block,) = blocks(text("states.md"), "edges")
    found = {}
    for line in block.splitlines():
        match = _EDGE.match(line)
        assert match, f"states.md: cannot read the edge {line!r}"
        letter, prior, next_, step, event = match.groups()
        assert letter not in found, f"states.md: two edges {letter}"
        told = None if event == "-" else event
        found[letter] = (frozenset(map(State, prior.split(", "))), State(next_), told, step)
    return found
