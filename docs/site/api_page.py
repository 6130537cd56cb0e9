"""The reference of the Python API, made from docstrings: public names only."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

#: Modules with their public names, in the order of the page. None: what `__all__` lists, else every name.
PUBLIC: dict[str, tuple[str, ...] | None] = {
    "celery_poison": None,
    "celery_poison.desk.search": ("Filter",),
    "celery_poison.quarantine": ("Care",),
    "celery_poison.extensions.holds.desk": ("HoldDesk",),
    "celery_poison.errors": None,
    "celery_poison.marks": None,
    "celery_poison.outbox": ("outbox_table", "publishing_in"),
    "celery_poison.rules.reports": ("Report", "ReportedMessage"),
    "celery_poison.signals": None,
}
_ROLE = re.compile(r":\w+:`~?([^`]+)`|``([^`]+)``")
_HEADING = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Example|Examples):$", re.MULTILINE)
_ITEM = re.compile(r"^ {4}(\*{0,2}[\w.]+(?: \([^)]*\))?): ", re.MULTILINE)


def page() -> str:
    """Return the page as Markdown."""
    parts = [
        "# Python API\n\nEvery public name, from its docstring. All other names may change without notice.\n"
    ]
    for module, names in PUBLIC.items():
        parts.append(f"\n## {module}\n")
        parts += [_entry(name, thing) for name, thing in _members(module, names)]
    return "".join(parts)


def _members(name: str, names: tuple[str, ...] | None) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(name)
    if names is None:
        names = getattr(module, "__all__", None) or tuple(
            found
            for found, thing in vars(module).items()
            if not found.startswith("_") and _is_own(thing, name)
        )
    return ((found, getattr(module, found)) for found in names)


def _is_own(thing: Any, module: str) -> bool:
    return getattr(thing, "__module__", None) == module or hasattr(thing, "providing_args")


def _entry(name: str, thing: Any, owner: str = "") -> str:
    if hasattr(thing, "providing_args"):
        return (
            f"\n### {name}\n\nSignal with {', '.join(f'`{arg}`' for arg in sorted(thing.providing_args))}.\n"
        )
    level = "####" if owner else "###"
    full = f"{owner}.{name}" if owner else name
    text = f"\n{level} {full}\n\n{_signature(full, thing)}{markdown(inspect.getdoc(thing) or '')}\n"
    if inspect.isclass(thing) and not owner:
        text += "".join(_entry(each, value, name) for each, value in _methods(thing))
    return text


def _signature(name: str, thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, (Exception, Enum)):
        return ""
    try:
        shown = str(inspect.signature(inspect.unwrap(thing)))
    except (TypeError, ValueError):
        return ""
    shown = re.sub(r"(?:celery_poison|collections|typing|celery|pathlib)(?:\.\w+)*\.(?=\w)", "", shown)
    shown = re.sub(r"'([^',]+)'", r"\1", shown) if "->" in shown else shown
    shown = shown.replace("(self, ", "(").replace("(self)", "()")
    if len(name + shown) > 90:
        shown = re.sub(r", (?=\*|\w+(?::|=|,|\)))", ",\n    ", shown).replace("(", "(\n    ", 1)
    return f"```text\n{name}{shown}\n```\n\n"


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that our own classes give it, in their order."""
    seen = set[str]()
    for base in thing.__mro__:
        if not base.__module__.startswith("celery_poison") or issubclass(thing, Enum):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen or not inspect.getdoc(value):
                continue
            if inspect.isfunction(value) or isinstance(value, property):
                seen.add(name)
                yield name, value


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: its sections as bold words, its arguments as a list."""
    text = _ROLE.sub(lambda role: f"`{role[1] or role[2]}`", docstring)
    pieces = _HEADING.split(text)
    out = [pieces[0].strip()]
    for heading, body in zip(pieces[1::2], pieces[2::2], strict=True):
        section, _, rest = body.partition("\n\n")
        out += [f"**{heading}**", _listed(section), inspect.cleandoc(rest)]
    return "\n\n".join(part for part in out if part)


def _listed(section: str) -> str:
    if not _ITEM.search(section):
        return inspect.cleandoc(section)
    return _ITEM.sub(lambda item: f"- `{item[1]}`: ", section).strip().replace("\n        ", "\n  ")
