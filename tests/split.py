"""Which tests a newcomer's `pytest -n 6` runs, and which are the rest: `tox -e all`, and CI.

A test is in the first run unless `rest.txt` lists it, a line for a test or one of its parameters. The list
is made from durations: the slowest are the rest, but the fastest of each file and of each requirement stays.
What is named, by a path or by -k, runs whole.

`python -m tests.split DURATIONS` writes the list anew, from what this printed:
`pytest -n 6 -m "not matrix and not chaos and not integrations" --durations=0 --durations-min=0.3`.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.services import ALL, FIRST

LIST = Path(__file__).with_name("rest.txt")
#: What CI has no time for either, and `tox -e matrix` runs: kept by hand, where a cheaper test shows as much.
LONG = Path(__file__).with_name("long.txt")
#: Seconds of all processes together, by the durations, that the tests in the first run may take.
BUDGET = 2100.0
#: Seconds beyond which a test is not kept for being the fastest of its file, and those of one with a worker.
TOO_SLOW, WITH_A_WORKER = 15.0, 1.5
#: A file of what passed in an earlier run, tests and whole files: it is left out, and what passes is added.
PASSED = "POISON_TEST_PASSED"


def listed(path: Path = LIST) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]


def take_whole_what_is_named(config: pytest.Config) -> None:
    """Leave nothing out for its time where the caller has named tests."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS or config.option.keyword
    if named and config.option.markexpr == FIRST:  # each process of xdist reads the same words
        config.option.markexpr = ALL


def mark_rest(items: Iterable[pytest.Item]) -> None:
    for marker, path in (("rest", LIST), ("matrix", LONG)):
        tests = set(listed(path))
        for item in items:
            if item.nodeid in tests or item.nodeid.partition("[")[0] in tests:
                item.add_marker(marker)


def passed() -> set[str]:
    """Return what has passed in an earlier run, if a file of such is named."""
    path = os.environ.get(PASSED)
    return {*Path(path).read_text(encoding="utf-8").splitlines()} if path and Path(path).exists() else set()


def leave_out_passed(config: pytest.Config, items: list[pytest.Item]) -> None:
    before = passed()
    out = [item for item in items if item.nodeid in before]
    items[:] = [item for item in items if item.nodeid not in before]
    config.hook.pytest_deselected(items=out)


def note_passed(config: pytest.Config) -> None:
    """Add what passed to that file, if one is named."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if (path := os.environ.get(PASSED)) and reporter is not None:
        tests = {kind: [each.nodeid for each in reporter.stats.get(kind, ())] for kind in (*_LEFT, "passed")}
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{each}\n" for each in (*tests["passed"], *_done(tests, config.rootpath)))


#: Of a file in which there is one of these, something is left to be run, or to be told.
_LEFT = ("failed", "error", "skipped", "xfailed", "xpassed")


def _done(tests: dict[str, list[str]], root: Path) -> set[str]:
    """Return the files that need not be read again: whatever of them a later run takes has passed."""
    left = {test.partition("::")[0] for kind in _LEFT for test in tests[kind]}
    left |= {test.partition("::")[0] for test in listed()}
    files = {test.partition("::")[0] for test in tests["passed"]} - left
    return {file for file in files if "mark.rest" not in (root / file).read_text(encoding="utf-8")}


def ids(name: str) -> set[str]:
    """The requirement ids in the name of a test."""
    return {
        f"{kind}-{number}"
        for kind, number in re.findall(r"(?:^|_)([A-Z]{2,}1?)_(\d+)", name.partition("[")[0])
    }


def choose_rest(durations: dict[str, float], budget: float) -> Iterator[str]:
    """Yield the slowest until the others fit into `budget`, but not the fastest of a file or requirement."""
    covered: dict[str, str] = {}
    fastest_first = sorted(durations, key=lambda each: durations[each])
    for test in fastest_first:
        path, _, name = test.partition("::")
        if durations[test] < TOO_SLOW:
            covered.setdefault(path, test)
        if durations[test] > WITH_A_WORKER:
            for requirement in ids(name):
                covered.setdefault(requirement, test)
    left, kept = sum(durations.values()), set(covered.values())
    for test in reversed(fastest_first):
        if left <= budget:
            return
        if test not in kept:
            left -= durations[test]
            yield test


def shortened(rest: set[str], tests: Iterable[str]) -> list[str]:
    """Return `rest`, with one line for a test of which all parameters are in it."""
    others = {test.partition("[")[0] for test in tests if test not in rest}
    names = ((test, test.partition("[")[0]) for test in rest)
    return sorted({test if name in others else name for test, name in names})


def _read(text: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for seconds, what, test in re.findall(
        r"^ *([\d.]+)s (call|setup|teardown) +(tests/\S+::.+)$", text, re.MULTILINE
    ):
        # A set-up is mostly that of a server which many tests share.
        found[test] += float(seconds) if what == "call" else min(float(seconds), 3.0)
    return found


def main() -> None:
    durations = _read(Path(sys.argv[1]).read_text(encoding="utf-8"))
    rest = shortened(set(choose_rest(durations, BUDGET)), durations)
    LIST.write_text("# The rest: see split.py.\n" + "".join(f"{test}\n" for test in rest), encoding="utf-8")


if __name__ == "__main__":
    main()
