"""What docs/cli.md takes from the help of the commands. `python -m tests.docs.cli_page` writes it anew.

The page has a comment where the help of a command belongs: `<!-- help: release -->`, up to `<!-- end -->`.
The options that many share come from there, too. All else is written by hand.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from celery_poison.cli.celery_command import poison
from celery_poison.cli.standalone import main as standalone

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
VERBS = poison.list_commands(click.Context(poison))
#: Commands that share an option with the same words for it to be said once.
MANY = 4
#: Options that many commands have together, under one name.
TOGETHER = {
    "a selection": ("--filter", "--since", "--between", "--group", "--all"),
    "an act on many": ("--dry-run", "--yes", "--note", "--ticket", "--actor", "--json"),
    "an act": ("--note", "--ticket", "--actor", "--json"),
}

_PART = re.compile(r"<!-- (shared|help: ([\w -]+)) -->\n.*?<!-- end -->\n", re.DOTALL)
#: Bounds of a number, which a command says itself where they are exceeded.
_RANGE = re.compile(r"(; | ?\[)[\dx.<=>]+\]")
_EXAMPLE = re.compile(r"^celery(?: -A proj poison|-poison) ")


def anew(page: str) -> str:
    """Return the page with its parts as the commands say them."""

    def part(found: re.Match[str]) -> str:
        text = shared() if found[1] == "shared" else help_of(found[2])
        return f"<!-- {found[1]} -->\n{text}<!-- end -->\n"

    return _PART.sub(part, page)


def shared() -> str:
    """Return the options that many commands have, and the names of those that come together."""
    named = "".join(f"- **{name}**: {_listed(names)}\n" for name, names in TOGETHER.items())
    return "".join(f"- {name}: {text}\n" for name, text in _shared()) + f"\n{named}"


def expanded(also: str) -> set[str]:
    """Return the options for which the end of a line of :func:`help_of` stands."""
    parts = [part.strip().strip("`") for part in also.split(",")]
    return {name for part in parts for name in TOGETHER.get(part, (part,))}


def _together(names: list[str]) -> str:
    """Return a list of options, with the names of those that come together."""
    found = []
    for title, each in TOGETHER.items():
        if {*each} <= {*names}:
            found.append(title)
            names = [name for name in names if name not in each]
    return ", ".join([*found, *([_listed(names)] if names else [])])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def help_of(path: str) -> str:
    """Return how to type a command, what it does, examples, and its own options."""
    command = _command(path)
    prefix = "" if path.startswith("celery-poison") else "celery -A proj poison "
    text, examples = _split(inspect.cleandoc(command.help or ""))
    usage = f"{prefix}{path} {' '.join(_arguments(command))}".rstrip()
    only_ids = usage.endswith((" ID", " [ID]..."))  # an example shows them as well
    shown = examples if examples and only_ids else [usage, *examples]
    parts = [f"    {line}\n" for line in dict.fromkeys(shown)]
    own = [(name, said) for name, said in _options(command) if (name, said) not in _shared()]
    also = [name.split()[0].strip("`") for name, said in _options(command) if (name, said) in _shared()]
    listed = "".join(f"- {name}: {said}\n" for name, said in own)
    more = f"- [also](#shared-options) {_together(also)}\n" if also else ""
    return f"\n{text}\n\n{''.join(parts)}\n" + (f"{listed}{more}\n" if own or also else "")


def commands() -> Iterator[str]:
    """Yield every command that has options or does something, by what is typed for it."""
    for verb in VERBS:
        inner = getattr(_command(verb), "commands", {})
        yield from ([f"{verb} {name}" for name in inner] if inner and verb != "pipeline" else [verb])


def _command(path: str) -> click.Command:
    group: click.Command = poison
    names = path.split()
    if names[0] == "celery-poison":
        group, names = standalone, names[1:]
    for name in names:
        assert isinstance(group, click.Group), path
        found = group.get_command(click.Context(group), name)
        assert found is not None, path
        group = found
    return group


def _arguments(command: click.Command) -> list[str]:
    made = [parameter.make_metavar(click.Context(command)) for parameter in command.params
            if isinstance(parameter, click.Argument)]  # fmt: skip
    return [*made, *(["COMMAND"] if isinstance(command, click.Group) else [])]


def _options(command: click.Command) -> list[tuple[str, str]]:
    context = click.Context(command)
    found = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    records = [record for option in found if (record := option.get_help_record(context))]
    return [
        (f"`{name.replace(' RANGE', '')}`", _plain(text)) for name, text in records if "--help" not in name
    ]


def _plain(text: str) -> str:
    """Return a text in which Markdown sees neither HTML nor slanted words."""
    return (
        " ".join(_RANGE.sub(lambda found: "]" if found[1] == "; " else "", text).split())
        .replace("<", "&lt;")
        .replace("*", "\\*")
    )


def _shared() -> list[tuple[str, str]]:
    counted = Counter(option for path in commands() for option in _options(_command(path)))
    return [option for option, times in counted.items() if times >= MANY]


def _split(text: str) -> tuple[str, list[str]]:
    """Return the sentences of a help text, and its examples."""
    prose, examples = [], []
    for block in text.replace("\b\n", "").split("\n\n"):
        lines = block.splitlines()
        if lines and _EXAMPLE.match(lines[0].strip()):
            examples += [line.strip() for line in lines]
        elif not block.startswith("Exit status"):
            prose.append(re.sub(r"(?<![`\w])(--[a-z-]+)", r"`\1`", " ".join(block.split())))
    return "\n\n".join(prose), examples


if __name__ == "__main__":
    PAGE.write_text(anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
