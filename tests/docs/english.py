"""Turns of phrase that these pages do without: `python -m tests.docs.english` lists every hit.

A sentence has a subject that is a thing, an active verb, and the glossary's noun. A hit is mended, or waived
by name in `english_waivers.txt`: a line there has file, pattern and words, as this module prints them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import DOCS, PACKAGE, PAGES, ROOT, prose

sys.path.insert(0, str(DOCS / "site"))

import api_page

WAIVERS = Path(__file__).with_name("english_waivers.txt")

#: A docstring has a thing as its subject or an imperative verb: "Return the delay", not "What is waited".
PRONOUN_FIRST = re.compile(
    r"(?:(?:Return|Yield) )?(?:what|whatever|those|who|whoever|whose|whom|such|there|it|they|this|that)\b",
    re.IGNORECASE,
)
#: Docstrings of the package that begin with a pronoun all the same: this number may only fall.
MOST_PRONOUNS = 144

_THINGS = "cell copy document entry key lake ledger message monitor pipeline plugin process program queue relay start suspect task tool trial worker"  # noqa: E501
_BEGINS = r"(?:^|(?<=[.!?:] )|(?<=\n))"
PATTERNS = {
    "told": re.compile(r"\btold\b", re.IGNORECASE),
    "tells": re.compile(r"\btells\b", re.IGNORECASE),
    "what is of it": re.compile(r"\bwhat (?:is|was|[bc]\w*)\b[^.?!]{0,40}\bof (?:it|them)\b", re.IGNORECASE),
    "whoever": re.compile(r"\bwhoever\b", re.IGNORECASE),
    "nobody": re.compile(r"\b(?:no|some)body\b", re.IGNORECASE),
    "for want of": re.compile(r"\bfor want of\b", re.IGNORECASE),
    "must bear": re.compile(r"\bmust bear\b", re.IGNORECASE),
    "so it is with": re.compile(r"\bso it is with\b", re.IGNORECASE),
    "who, of a thing": re.compile(rf"\b(?:{'|'.join(_THINGS.split())})e?s?,? who\b", re.IGNORECASE),
    "begins with Who": re.compile(rf"{_BEGINS}Who (?!is |are |may |has )[^.?!|]*[.!|]"),
    "begins with What": re.compile(rf"{_BEGINS}What [^.?!|]*[.!|]"),
    "begins with Of": re.compile(rf"{_BEGINS}Of (?!course)[^.?!|]*[.!|]"),
}  # fmt: skip


class Hit(NamedTuple):
    """A place where a pattern fits.

    Attributes:
        file: relative to the repository.
        pattern: its name.
        words: what it fits, on one line, 60 characters at most.
    """

    file: str
    pattern: str
    words: str

    def __str__(self) -> str:
        return f"{self.file} | {self.pattern} | {self.words}"


def in_pages() -> Iterator[Hit]:
    """Yield the hits in the prose of all pages and the Python API: not in code, addresses and headings."""
    for page in PAGES:
        yield from _in_text(page, "\n\n".join(sentences(page.read_text(encoding="utf-8"))))
    yield from _in_text(Path(api_page.__file__), "\n\n".join(sentences(api_page.page())))


def sentences(page: str) -> list[str]:
    """Return paragraphs, items and cells of a page, each as one line of plain text."""
    # Made from the package's own texts, which are looked at for themselves.
    text = re.sub(r"<!-- (?:help|shared|settings)\b.*?<!-- end -->", "", prose(page), flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(?:#+ .*| {4}.*|\|[-:| ]+\|)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]+`", "X", text)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\||(?<!\\)\|", "\n\n", text, flags=re.MULTILINE).replace("*", "")
    return [line for block in text.split("\n\n") if (line := " ".join(block.split()))]


@cache
def in_package() -> list[Hit]:
    """Return the hits in texts that the program prints: help texts, log lines, errors."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [hit for path in paths for hit in _in_text(path, "\n\n".join(printed(path.read_text("utf-8"))))]


def begin_with_a_pronoun(code: str) -> list[str]:
    """Return the first lines of a module's docstrings that have a pronoun for a subject or an object."""
    docs = [
        doc.value for node in ast.walk(ast.parse(code)) if isinstance(doc := _docstring(node), ast.Constant)
    ]
    lines = [doc.strip().split("\n")[0] for doc in docs if isinstance(doc, str)]
    return [line for line in lines if PRONOUN_FIRST.match(line)]


def pronouns_in_package() -> list[str]:
    """Return such lines of the whole package, each behind its file."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [
        f"{path.relative_to(PACKAGE).as_posix()}: {line}"
        for path in paths
        for line in begin_with_a_pronoun(path.read_text("utf-8"))
    ]


def printed(code: str) -> list[str]:
    """Return the texts of some words in a module; of its docstrings only those that are help texts."""
    nodes = [*ast.walk(ast.parse(code))]
    silent = {id(doc) for node in nodes if (doc := _docstring(node)) and not _is_command(node)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in silent]
    return [" ".join(text.split()) for text in texts if isinstance(text, str) and len(text.split()) > 2]


def _docstring(node: ast.AST) -> ast.expr | None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = node.body[0] if isinstance(node, kinds) and node.body else None
    return first.value if isinstance(first, ast.Expr) else None


def _is_command(node: ast.AST) -> bool:
    return any("command" in ast.unparse(each) or ".group" in ast.unparse(each)
               for each in getattr(node, "decorator_list", []))  # fmt: skip


def _in_text(path: Path, text: str) -> Iterator[Hit]:
    for name, pattern in PATTERNS.items():
        for found in pattern.finditer(text):
            before = "" if name.startswith("begins") else text[: found.start()].rpartition("\n")[2][-25:]
            line = before.lstrip() + text[found.start() :].split("\n")[0]
            yield Hit(path.relative_to(ROOT).as_posix(), name, line[:60].rstrip())


def waived() -> set[str]:
    """Return the lines of the file of waivers, but those that give a reason."""
    lines = WAIVERS.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


if __name__ == "__main__":
    for hit in [*in_pages(), *in_package()]:
        sys.stdout.write(f"{hit}\n")
