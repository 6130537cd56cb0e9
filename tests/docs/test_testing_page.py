"""docs/howto/testing.md: its example is a test that passes, and what it names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from celery_poison import testing
from celery_poison.testing import deaths, find_redis_binary
from tests import PATIENCE
from tests.docs.pages import blocks, rows, section, text, words
from tests.services import need

PAGE = text("howto/testing.md")


def test_the_example_is_a_test_that_passes(tmp_path: Path) -> None:
    need(find_redis_binary() is not None, "redis-server")
    for block in blocks(PAGE, "python"):
        (tmp_path / block.split()[1]).write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_everything_that_it_lists_exists_and_everything_public_is_listed() -> None:
    listed = [words(cell) for row in rows(section(PAGE, "What there is")) for cell in row]
    methods = {name for cell in listed for word in cell for name in re.findall(r"^(\w+)\(.*\)$", word)}
    kinds = (testing, testing.RedisServer, testing.Worker, testing.Supervisor, deaths)
    assert {name for name in methods if not any(hasattr(kind, name) for kind in kinds)} == set()
    assert {"RedisServer", "Worker", "Supervisor", "wait_until"} <= methods
    ways = {name for name, way in vars(deaths).items() if callable(way) and way.__module__ == deaths.__name__}
    named = {name for cell in listed for word in cell for name in re.findall(r"(?:deaths\.)?(\w+)\(\)", word)}
    assert {name for name in ways if not name.startswith("_")} <= named
