"""How easily each page reads: `python -m tests.docs.reading_ease` prints Flesch's reading ease of each.

From 60 on plain English, from 50 on fairly difficult. Whatever is set as code counts as one word of two
syllables. The pages to learn from and to work by (the tabs Learn and Do) must reach `LEAST`.
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


if __name__ == "__main__":
    must = held()
    for page in sorted(PAGES, key=ease):
        mark = "must" if page in must else "    "
        sys.stdout.write(f"{ease(page):6.1f} {mark} {page.relative_to(ROOT)}\n")
