"""docs/site/make_site.py makes a site of the pages, without a network."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT

sys.path.insert(0, str(DOCS / "site"))

import api_page
import make_site

KINDS = ["Learn", "Do", "Look up", "Understand", "Contribute"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("zensical") is None:
        missing = "the generator of the site is not installed: pip install '.[docs]'"
        pytest.skip(missing)
    if made := os.environ.get("POISON_TEST_SITE"):
        return Path(made)
    folder = tmp_path_factory.mktemp("docs") / "site"
    make_site.build(folder)
    return folder


def test_the_index_has_the_four_kinds_and_what_contributors_need_apart() -> None:
    assert list(make_site.sections()) == KINDS


def test_every_page_is_a_page_of_the_site_with_its_markdown_beside_it(site: Path) -> None:
    pages = {path.relative_to(DOCS) for path in DOCS.rglob("*.md")}
    pages |= {Path(place) for place in make_site.PLACES.values()} | {Path("api.md")}
    assert {path.relative_to(site) for path in site.rglob("*.md")} == pages
    assert {page for page in pages if not (site / page.with_suffix(".html")).exists()} == set()


def test_every_page_has_the_kinds_as_its_tabs(site: Path) -> None:
    page = (site / "howto" / "playbook.html").read_text(encoding="utf-8")
    tabs = page.partition("md-tabs__list")[2].partition("</ul>")[0]
    assert [kind for kind in KINDS if kind in tabs] == KINDS


def test_the_pages_of_a_tab_stand_in_the_groups_of_the_index(site: Path) -> None:
    page = (site / "howto" / "playbook.html").read_text(encoding="utf-8")
    groups = [group for group, _ in make_site._GROUP.findall(make_site.INDEX.read_text(encoding="utf-8"))]
    assert groups[0] == "On call" and [group for group in groups if group not in page] == []


def test_the_list_for_programs_leads_to_every_page(site: Path) -> None:
    led = set(make_site._LINK.findall((site / "llms.txt").read_text(encoding="utf-8")))
    assert {target for _, _, target in led} == {
        path.relative_to(site).as_posix() for path in site.rglob("*.md") if path.name != "index.md"
    }


def test_the_search_knows_every_page(site: Path) -> None:
    found: Any = json.loads((site / "search.json").read_text(encoding="utf-8"))
    known = {item["location"].partition("#")[0] for item in found["items"]}
    pages = {path.relative_to(site).with_suffix(".html").as_posix() for path in site.rglob("*.md")}
    assert pages - known - {"index.html"} == set()


def test_what_a_browser_would_load_from_another_host_is_refused(site: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(site, tmp_path / "site")
    with (folder / "glossary.html").open("a", encoding="utf-8") as page:
        page.write('<script src="https://cdn.example.com/x.js"></script>')
    with pytest.raises(make_site.Problem, match=r"glossary\.html loads from another host"):
        make_site.check(folder)


def test_a_link_that_leads_nowhere_stops_the_build(tmp_path: Path) -> None:
    stage = make_site.Stage(tmp_path)
    with pytest.raises(make_site.Problem, match="nowhere"):
        stage.take(ROOT / "docs" / "nowhere.md")


def test_the_reference_has_every_public_name_with_its_docstring() -> None:
    import celery_poison

    page = api_page.page()
    assert [name for name in celery_poison.__all__ if f"\n### {name}\n\n" not in page] == []
    assert "#### Quarantine.release\n" in page and "``" not in page.replace("```", "")
