"""The tutorial, word for word: what it tells to type works, and what it shows is what comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, text
from tests.docs.walk import SHOWN, Walk, alike, shown, typed


@pytest.fixture
def walk(redis_url: str, tmp_path: Path) -> Iterator[Walk]:
    walk = Walk(redis_url, tmp_path)
    yield walk
    walk.close()


def test_the_tutorial_does_what_it_says_and_shows_what_is_really_printed(walk: Walk) -> None:
    page, readme = text("tutorial.md"), (ROOT / "README.md").read_text(encoding="utf-8")
    for command in typed(page):
        walk.type(command)
    walk.press_ctrl_c()
    assert {command: status for command, status in walk.statuses.items() if status} == _fails(walk)
    seen = {alike(line) for line in walk.seen.splitlines()}
    told = [*shown(page), *shown(readme)]
    assert len(told) > 10
    missing = [line for line in told if not _was_seen(line, seen)]
    assert not missing, "\n".join([*missing, "--- but:", walk.seen])


def _fails(walk: Walk) -> dict[str, int]:
    """`celery result` leaves with a status of failure where the result is one."""
    (last,) = [command for command in walk.statuses if "shop result" in command][-1:]
    return {last: walk.statuses[last]} if walk.statuses[last] else {}


def _was_seen(line: str, seen: set[str]) -> bool:
    """Whether a line was printed; one that begins or ends with … needs to be only a part of one."""
    wanted = alike(line.strip().strip("…"))
    if line.strip().endswith("…") or line.strip().startswith("…"):
        return any(wanted in each for each in seen)
    return wanted in seen or any(each.endswith(wanted) for each in seen)


def test_lines_are_alike_that_differ_in_ids_numbers_and_widths() -> None:
    one = "f9cb1b09-1111-2222-3333-abcdefabcdef  celery@host1  pid:14140   8s"
    other = "0011aabb  celery@box  pid:7 1s"
    assert alike(one) == alike(other)
    assert alike("exited with SIGSEGV") != alike("exited with SIGKILL")
    assert SHOWN.sub("X", "release f9cb1b09 --note") == "release X --note"
