"""The table in docs/settings.md. `python -m tests.docs.settings_table` writes it anew."""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from celery_poison.settings import PREFIX, Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
BEGIN, END = "<!-- table begins -->\n", "<!-- table ends -->\n"


def table() -> str:
    """The settings that this version acts on, and a sentence that names the others."""
    head = "| setting | default | unit | meaning |\n|---|---|---|---|\n"
    acting = [field for field in fields(Settings) if field.metadata["acts"]]
    return head + "".join(map(_row, acting)) + _others()


def _row(field: Field[Any]) -> str:
    meaning = field.metadata["doc"].replace("|", "\\|")
    return f"| `{PREFIX}{field.name}` | `{field.default!r}` | {field.metadata['unit']} | {meaning} |\n"


def _others() -> str:
    names = [f"`{PREFIX}{field.name}`" for field in fields(Settings) if not field.metadata["acts"]]
    return (
        "\n".join(["", "Taken and checked, and not acted on yet:", ",\n".join(names) + ".", ""])
        if names
        else ""
    )


def parts(page: str) -> tuple[str, str, str]:
    """What stands before the table, the table, and what stands after it."""
    before, rest = page.split(BEGIN)
    shown, after = rest.split(END)
    return before, shown, after


if __name__ == "__main__":
    before, _, after = parts(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")
