"""Getting the pages into Flower, and what happens when Flower is not as we know it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import flower.views
import pytest
from flower import urls

from celery_poison import Quarantine
from celery_poison.flower import PoisonLoader, install, with_tab
from celery_poison.flower.choosing import ACTIONS
from tests.apps.harness import Fleet
from tests.flower.conftest import Serve

TEMPLATES = Path(flower.views.__file__).parents[1] / "templates"


def test_two_lines_in_flowerconfig_are_enough(serve: Serve, fleet: Fleet) -> None:
    config = fleet.directory / "flowerconfig.py"
    config.write_text("from celery_poison.flower import install\ninstall()\nbasic_auth = ['ann:pa55word']\n")
    served = serve(f"--conf={config}", command=("flower",), fresh=True)
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


def test_every_act_is_a_method_of_the_class_with_the_choices_that_it_has() -> None:
    assert [*ACTIONS] == ["release", "fail", "discard", "schedule", "unschedule"]
    for action in ACTIONS.values():
        parameters = inspect.signature(getattr(Quarantine, action.verb)).parameters
        switches = [name for name, each in parameters.items() if each.default is False]
        assert [*action.choices] == switches
