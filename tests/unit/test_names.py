"""Names in the package: each class and each file once, verbs for what acts, and nouns that name the thing.

``names_waivers.txt`` lists what is not so yet; a line there that fits nothing fails, too: it only shrinks.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import PACKAGE

WAIVERS = Path(__file__).with_name("names_waivers.txt")
#: Files that each room of `extensions/`, and of a broker, may have: loaded by name, or the same part of each.
OF_A_ROOM = {
    "kind.py": "of a broker: its answers to `broker/port.py`",
    "queues.py": "of a broker",
    "checks.py": "of `doctor`",
    "flower.py": "pages and panels, loaded by this name",
    "metrics.py": "families, loaded by this name",
    "verbs.py": "commands, loaded by this name",
    "desk.py": "what people see and decide of it",
    "settings.py": "its settings and options",
    "evidence.py": "its evidence, with its sentences",
}
#: Django finds these by their names.
OF_DJANGO = ("Meta", "Migration")
#: Participles that do not end in -ed.
_IRREGULAR = """
    begun born bought bound broken brought built caught chosen come dealt died done drawn driven fed felt
    forgotten found fell gave given gone grown heard held hidden hung kept knew known laid led left lent lost
    made meant met paid risen said sat saw seen sent shown sold spent spoken stolen stood struck stuck swept
    taken taught thought told took torn understood went won worn written
""".split()  # noqa: SIM905
_TRUTHS = ("bool", "TypeGuard", "Column")
_SAY_NOTHING = frozenset(("found", "told", "known", "said"))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _modules() -> dict[str, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


def _functions() -> Iterator[tuple[str, _Function]]:
    for file, module in _modules().items():
        for node in ast.walk(module):
            if isinstance(node, _Function):
                yield file, node


def _is_property(function: _Function) -> bool:
    return any("property" in ast.unparse(each) for each in function.decorator_list)


def _is_participle(name: str) -> bool:
    first = name.strip("_")
    return first in _IRREGULAR or bool(re.fullmatch(r"(?!need|feed|seed|embed|speed)[a-z]+ed", first))


def _twins(names: Iterator[tuple[str, str]]) -> list[str]:
    places = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return [f"{name}: {', '.join(each)}" for name, each in sorted(places.items()) if len(each) > 1]


def _class_twins() -> list[str]:
    return _twins(
        (node.name, file)
        for file, module in _modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and node.name not in OF_DJANGO
    )


def _file_twins() -> list[str]:
    rooms = (file for file in _modules() if not file.endswith("__init__.py"))
    return _twins(
        (name, file)
        for file in rooms
        for name in [file.rpartition("/")[2]]
        if not (name in OF_A_ROOM and re.match(r"extensions/|broker/\w+/", file))
    )


def _participles() -> list[str]:
    """Functions named by a bare participle, and `is_…`, `has_…` that answer nothing."""
    return [
        f"{file}: {function.name}()"
        for file, function in _functions()
        if not _is_property(function)
        and (_is_participle(function.name) or _is_act_named_as_a_truth(function))
    ]


def _is_act_named_as_a_truth(function: _Function) -> bool:
    returned = ast.unparse(function.returns) if function.returns else ""
    is_named_so = re.match(r"_*(?:is|has|had|was|were|went)_", function.name)
    return bool(is_named_so) and not any(kind in returned for kind in _TRUTHS)


def _nameless() -> list[str]:
    """Parameters and results that are named ``found``, ``told``, ``known`` or ``said``."""
    return [
        f"{file}: {function.name}({name})"
        for file, function in _functions()
        for name in sorted({*_parameters(function), *_results(function)} & _SAY_NOTHING)
    ]


def _parameters(function: _Function) -> Iterator[str]:
    given = function.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if each:
            yield each.arg


def _results(function: _Function) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
            yield node.value.id


RULES = {
    "class": _class_twins,
    "file": _file_twins,
    "participle": _participles,
    "says nothing": _nameless,
}


def _waived(rule: str) -> set[str]:
    lines = WAIVERS.read_text(encoding="utf-8").splitlines()
    return {line.partition(" | ")[2] for line in lines if line.startswith(f"{rule} | ")}


def _name_of(line: str) -> str:
    """Return the name alone, which stays where its file moves."""
    first, _, second = line.partition(": ")
    return second if second.endswith(")") else first


@pytest.mark.parametrize("rule", RULES)
def test_every_name_keeps_the_rules_but_those_that_are_waived_and_every_waiver_is_needed(rule: str) -> None:
    broken, waived = {*RULES[rule]()}, _waived(rule)
    assert [each for each in sorted(broken) if _name_of(each) not in waived] == [], (
        "find a name of its own: a noun of the glossary, or a verb"
    )
    assert sorted(waived - {*map(_name_of, broken)}) == [], (
        "these are mended: take them off names_waivers.txt"
    )


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("dropped", True), ("_sent", True), ("embed", False), ("send", False), ("keep", False)],
)
def test_a_bare_participle_is_known(name: str, is_one: bool) -> None:
    assert _is_participle(name) is is_one
