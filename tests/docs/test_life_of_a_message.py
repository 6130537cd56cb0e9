"""docs/life-of-a-message.md names the files that a healthy message meets: all of them, in their order."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.docs.pages import PACKAGE, rows, section, text, words
from tests.docs.tracing import TRACE, recorder

PAGE = "life-of-a-message.md"
PLACES = (PAGE, "where-is-it.md")
MOST = 10
#: Of the worker's main thread, but for no message in particular: they may fall into any moment.
ALL_THE_TIME = {
    "broker/redis/unacked.py",
    "worker/announce.py",
    "worker/threads.py",
    "worker/pool_processes.py",
}

_FILE = re.compile(r"[\w/]+\.(?:py|lua)")
_NAMED = re.compile(r"`([\w/]+\.py)`\s+→\s+`([\w.]+)`")


def _healthy() -> tuple[list[str], set[str]]:
    """The files of the first table, and those that are asked one question on the way."""
    part = section(text(PAGE), "A healthy message")
    table, _, asked = part.partition("more are asked one question")
    return [words(row[1])[0] for row in rows(table)], set(filter(_FILE.fullmatch, words(asked)))


def test_a_healthy_message_meets_ten_files_at_most_each_told_once() -> None:
    listed, asked = _healthy()
    assert len(listed) <= MOST
    assert len({*listed, *asked}) == len(listed) + len(asked)


@pytest.mark.parametrize("page", PLACES)
def test_every_file_that_is_named_exists(page: str) -> None:
    named = set(filter(_FILE.fullmatch, words(text(page))))
    assert named
    assert [name for name in sorted(named) if not (PACKAGE / name).exists()] == []


@pytest.mark.parametrize("page", PLACES)
def test_every_name_behind_a_file_is_a_class_or_function_of_it(page: str) -> None:
    named = _NAMED.findall(text(page))
    assert named
    assert [f"{file}: {name}" for file, name in named if name not in _names_in(PACKAGE / file)] == []


def test_a_method_that_is_named_without_its_file_belongs_to_a_class_that_was() -> None:
    page = text(PAGE)
    known = {(name.partition(".")[0], file) for file, name in _NAMED.findall(page)}
    methods = [word for word in words(page) if re.fullmatch(r"[A-Z]\w+\.\w+", word)]
    assert methods
    for method in methods:
        files = [file for owner, file in known if owner == method.partition(".")[0]]
        assert any(method in _names_in(PACKAGE / file) for file in files), method


def _names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    top = [node for node in tree.body if isinstance(node, kinds)]
    inner = {
        f"{node.name}.{member.name}"
        for node in top
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, kinds)
    }
    return {node.name for node in top} | inner


@dataclass
class Traced(Fleet):
    module = "tests.docs.traced"


def test_a_real_worker_runs_exactly_the_code_of_these_files(
    assemble: Callable[..., Traced], redis_url: str, tmp_path: Path
) -> None:
    # Patient: on a busy machine a late heartbeat would make it look twice.
    patient = {"poison_heartbeat_interval": 3.0, "poison_activation_interval": 120.0}
    fleet, trace = assemble(Traced, redis_url, **patient), tmp_path / "trace"
    with fleet.worker(concurrency=1, env={TRACE: str(trace)}):
        assert fleet.send("healthy", 0).get(timeout=PATIENCE) == 0, "everything is loaded now"
        fleet.await_that(lambda: not [*fleet.quarantine.queries.running()], "nothing is left of it")
        trace.touch()
        result = _send_traced(fleet, trace)
        assert result.get(timeout=PATIENCE) == 1
        fleet.await_that(lambda: not [*fleet.quarantine.queries.running()], "nothing is left of this one")
        met = dict(line.split() for line in trace.read_text().splitlines())
        trace.unlink()
    listed, asked = _healthy()
    assert met.keys() - ALL_THE_TIME == {*listed, *asked}, met


def _send_traced(fleet: Fleet, trace: Path) -> Any:
    sys.setprofile(recorder(str(trace)))
    try:
        return fleet.send("healthy", 1)
    finally:
        sys.setprofile(None)
