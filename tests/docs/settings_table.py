"""The table in docs/settings.md. `python -m tests.docs.settings_table` writes it anew."""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from celery_poison.settings import PREFIX, Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
BEGIN, END = "<!-- table begins -->\n", "<!-- table ends -->\n"


def table() -> str:
    """Every setting."""
    head = "| setting | default | unit | meaning |\n|---|---|---|---|\n"
    return head + "".join(map(_row, fields(Settings)))


def _row(field: Field[Any]) -> str:
    meaning = field.metadata["doc"].replace("|", "\\|")
    return f"| `{PREFIX}{field.name}` | `{field.default!r}` | {field.metadata['unit']} | {meaning} |\n"


def parts(page: str) -> tuple[str, str, str]:
    """What stands before the table, the table, and what stands after it."""
    before, rest = page.split(BEGIN)
    shown, after = rest.split(END)
    return before, shown, after


if __name__ == "__main__":
    before, _, after = parts(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")
