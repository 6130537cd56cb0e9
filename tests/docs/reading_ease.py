"""How easily each page reads, and how long it is: `python -m tests.docs.reading_ease` prints both.

The ease is Flesch's: from 60 on plain English, from 50 on fairly difficult. Whatever is set as code counts as
one word of two syllables. The pages to learn from and to work by (the tabs Learn and Do) must reach `LEAST`.
The pages for users, in all tabs but Contribute, without the changelog, have `MOST` words together.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import textstat

from tests.docs.english import sentences
from tests.docs.pages import DOCS, PAGES, ROOT

sys.path.insert(0, str(DOCS / "site"))

import make_site

LEAST = 55.0
MOST = 38_000
KINDS = ("Learn", "Do")


def ease(page: Path) -> float:
    """Return the reading ease of a page's sentences: of neither code, headings, nor cells without a verb."""
    lines = [line for line in sentences(page.read_text(encoding="utf-8")) if len(line.split()) > 4]
    ended = [line if re.search(r"[.!?:]$", line) else f"{line}." for line in lines]
    ended = [re.sub(r"\bX\b", "setting", line) for line in ended]
    return float(textstat.flesch_reading_ease("\n".join(ended)))


def held() -> list[Path]:
    """Return the pages that must reach `LEAST`."""
    return [(DOCS / page).resolve() for kind in KINDS for _, page, _ in make_site.sections()[kind]]


def for_users() -> list[Path]:
    """Return the pages that count towards `MOST`."""
    kinds = [kind for kind in make_site.sections() if kind != "Contribute"]
    listed = [(DOCS / page).resolve() for kind in kinds for _, page, _ in make_site.sections()[kind]]
    return [page for page in (DOCS / "index.md", *listed) if page.name != "CHANGELOG.md"]


def length(page: Path) -> int:
    """Return the number of words, code included; the bars and rulers of tables are none."""
    return len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    must = held()
    for page in sorted(PAGES, key=ease):
        mark = "must" if page in must else "    "
        sys.stdout.write(f"{ease(page):6.1f} {mark} {length(page):6} {page.relative_to(ROOT)}\n")
    sys.stdout.write(f"{sum(map(length, for_users())):18} words for users\n")
