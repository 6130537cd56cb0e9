"""Getting the pages into Flower, and what happens when Flower is not as we know it."""

from __future__ import annotations

import re
from pathlib import Path

import flower.views
import pytest
from flower import urls

from celery_poison.flower import install
from celery_poison.flower.actions import ACTIONS, find_actions
from celery_poison.flower.templates import PoisonLoader, with_tab
from celery_poison.quarantine import Quarantine
from celery_poison.states import State
from tests.apps.harness import Fleet
from tests.flower.conftest import Serve

TEMPLATES = Path(flower.views.__file__).parents[1] / "templates"


def test_two_lines_in_flowerconfig_are_enough(serve: Serve, fleet: Fleet) -> None:
    config = fleet.directory / "flowerconfig.py"
    config.write_text("from celery_poison.flower import install\ninstall()\nbasic_auth = ['ann:pa55word']\n")
    served = serve(f"--conf={config}", command=("flower",))
    assert served.get("/poison").status == 401
    served.user = "ann:pa55word"
    assert ">Quarantine</a>" in served.get("/").text
    assert "Nothing is in quarantine" in served.get("/poison").text


def test_the_tab_is_made_like_that_of_the_broker() -> None:
    ours = with_tab((TEMPLATES / "navbar.html").read_text())
    assert re.search(
        r"reverse_url\('broker'\).*?</li>.*?reverse_url\('poison'\).*?>Quarantine<", ours, re.DOTALL
    )
    assert ours.count("<li") == ours.count("</li>")


@pytest.mark.parametrize("navbar", ["<nav></nav>", "<li>{{ reverse_url('broker') }} Queues</li>"])
def test_a_navigation_bar_that_has_changed_is_left_alone_with_a_warning(
    navbar: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert with_tab(navbar) == navbar
    assert "without a tab" in caplog.text


def test_without_a_base_that_we_know_the_pages_stand_on_a_plain_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "base.html").write_text("<html>{% block everything %}{% end %}</html>")
    base = PoisonLoader(str(tmp_path)).load("base.html").generate()
    assert b'id="main-content"' in base
    assert "plain" in caplog.text


def test_a_flower_that_is_built_differently_goes_on_without_us(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(urls, "handlers", ("not", "a", "list"))
    assert not install()
    assert "not built as expected" in caplog.text


def test_installing_twice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "handlers", [*urls.handlers])
    monkeypatch.setattr(urls, "settings", {**urls.settings})
    assert install()
    routes = [*urls.handlers]
    assert install()
    assert urls.handlers == routes


def test_the_acts_are_those_of_the_class() -> None:
    assert {"release", "fail", "discard"} <= set(ACTIONS)
    assert ACTIONS["release"].choices.keys() == {"force"}
    assert ACTIONS["release"].choices["force"].startswith("release even if")
    assert "list" not in ACTIONS


def test_an_act_that_is_added_to_the_class_appears() -> None:
    class Newer(Quarantine):
        def restore(self, ids, *, actor="", note="", gently=False, on_outcome=None):  # type: ignore[no-untyped-def]
            """Take back what was given up.

            Args:
                gently: one by one.
            """

        def edit(self, ids, *, body, actor="", note="", on_outcome=None):  # type: ignore[no-untyped-def]
            """Needs a page of its own."""

    (found,) = find_actions(Newer).values()
    assert (found.verb, found.story, found.choices) == (
        "restore",
        "Take back what was given up.",
        {"gently": "one by one."},
    )
    assert found.states <= {*State}
