"""Public issues: what docs/issues.md says of them is what their scripts do."""

from __future__ import annotations

import re

import pytest

from celery_poison.testing import find_redis_binary
from examples.issues.stage import Stage, script
from examples.issues.table import NAMES, expected, table
from tests import sampled
from tests.docs.pages import text
from tests.harness.servers import RabbitServer
from tests.services import need

PAGE = text("issues.md") + text("issues-repaired.md")
ALWAYS = [("celery_9082", False), ("celery_9082", True), ("celery_3541", True)]
OTHERS = [cell for name in NAMES for cell in ((name, False), (name, True)) if cell not in ALWAYS]


@pytest.mark.parametrize(("name", "guarded"), sampled(ALWAYS, OTHERS))
def test_an_issue_comes_out_as_the_page_says(name: str, guarded: bool) -> None:
    need(find_redis_binary(), "redis-server")
    if getattr(script(name), "BROKER", "redis") == "rabbitmq":
        need(RabbitServer.available(), "RabbitMQ")
    with Stage(name, guarded=guarded) as stage:
        outcome = stage.play()
        assert outcome == expected(name, guarded=guarded), stage.logs()[-5000:]


@pytest.mark.parametrize("state", ["solved", "fixed", "open"])
def test_the_page_has_the_table_that_the_scripts_declare(state: str) -> None:
    assert table(state) in PAGE, "python -m examples.issues --table prints it"


def test_every_script_has_one_row_on_the_pages() -> None:
    told = re.findall(r"^\| \[(billiard|celery|kombu|flower) #(\d+)\]", PAGE, re.MULTILINE)
    assert sorted("_".join(issue) for issue in told) == sorted(NAMES)
