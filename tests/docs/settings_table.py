"""The tables in docs/settings.md. `python -m tests.docs.settings_table` writes them anew.

The page says in a comment which settings stand in which table; one that is in none comes into the last.
"""

from __future__ import annotations

import re
from dataclasses import Field
from pathlib import Path
from typing import Any

from celery_poison.settings import PREFIX, Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
HEAD = "| setting | default | meaning |\n|---|---|---|\n"

_TABLE = re.compile(r"<!-- settings: ([\w ]*)-->\n(?:.*?)<!-- end -->\n", re.DOTALL)


def anew(page: str) -> str:
    """Return the page with its tables as the code has them."""
    known = {field.name: field for field in Settings.by_name().values()}
    listed = [name for names in _TABLE.findall(page) for name in names.split()]
    assert len(listed) == len(set(listed)), "a setting stands in two tables"
    missing = [name for name in known if name not in listed]
    last = len(_TABLE.findall(page))
    tables = iter(range(1, last + 1))

    def table(found: re.Match[str]) -> str:
        names = [name for name in found[1].split() if name in known]
        names += missing if next(tables) == last else []
        rows = "".join(_row(known[name]) for name in names)
        return f"<!-- settings: {' '.join([*names, ''])}-->\n{HEAD}{rows}<!-- end -->\n"

    return _TABLE.sub(table, page)


def _row(field: Field[Any]) -> str:
    meaning, unit = field.metadata["doc"].replace("|", "\\|"), field.metadata["unit"]
    default = f"`{field.default!r}`" + (f" {unit}" if unit and field.default is not None else "")
    name = f"`{PREFIX}{field.name}`"
    # Of what has no default the unit is said with the meaning.
    return f"| {name} | {default} | {meaning}{f' In {unit}.' if unit and field.default is None else ''} |\n"


if __name__ == "__main__":
    PAGE.write_text(anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
