"""What an engineer on call reads in Flower of deaths, rows, memory and versions, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.confined import Confined, killed_as_a_whole, new_memory_group
from tests.apps.harness import ROOT, Fleet
from tests.extensions.boxes import Boxes, watching
from tests.extensions.loops import Walks
from tests.extensions.shop import Shop
from tests.flower.conftest import Serve
from tests.flower.served import ANN, FlowerServer
from tests.flower.test_browser import await_text, click, fits, text, visit
from tests.worker.conftest import Crew

pytestmark = pytest.mark.matrix

RESUME = "button[aria-label^='Resume:']"


@pytest.fixture
def open_page(browser: Any, serve: Serve, pictures: Path) -> Callable[..., FlowerServer]:
    """Visit a page of a fleet's Flower, wait for a text, and take a picture as high as the page is."""

    def visited(of: Fleet, path: str, wanted: str, picture: str) -> FlowerServer:
        served = serve(user=ANN, of=of, app=of.module)
        visit(browser, served, path)
        await_text(browser, wanted)
        take(browser, pictures / picture)
        return served

    return visited


def take(browser: Any, path: Path) -> None:
    assert fits(browser), "nothing sticks out"
    height = browser.execute_script("return document.documentElement.scrollHeight")
    browser.set_window_size(1280, min(2400, height + 150))
    browser.save_screenshot(str(path))
    browser.set_window_size(1280, 900)


def _one_kept(fleet: Fleet, task: str, *args: Any, told: bool = False) -> Any:
    fleet.app.tasks[task].apply_async(args)

    def kept() -> list[Any]:
        return [record for record in fleet.quarantine.list() if record.told == told]

    with fleet.worker():
        wait_until(kept, what=fleet.evidence)
    return kept()[0]


def test_NEW_16_a_release_of_what_must_not_run_twice_wants_its_tick(
    browser: Any, open_page: Any, assemble: Callable[..., Crew], redis_url: str, pictures: Path
) -> None:
    crew = assemble(Crew, redis_url)
    kept = _one_kept(crew, "fleet.mails", "dies")
    open_page(crew, f"/poison/task/{kept.id}", "its task says rerun=False: a release asks", "rerun.png")
    click(browser, ".poison-bar button[formaction$='/release']")
    await_text(browser, "Marked messages have begun once (rerun=False)", "dialog")
    take(browser, pictures / "rerun-dialog.png")
    tick = browser.find_element("css selector", "dialog input[name='yes_run_again']")
    assert not tick.is_selected()
    click(browser, "#poison-do")
    await_text(browser, "Release: refused")
    await_text(browser, "it has begun once", "#poison-job")
    take(browser, pictures / "rerun-refused.png")
    assert crew.quarantine.list(), "it stays without the tick"


def test_NEW_17_a_page_says_that_the_caller_has_the_failure(
    browser: Any, open_page: Any, assemble: Callable[..., Crew], redis_url: str, pictures: Path
) -> None:
    crew = assemble(Crew, redis_url)
    kept = _one_kept(crew, "fleet.vows", told=True)
    open_page(crew, f"/poison/task/{kept.id}", "Its caller has the failure already.", "told.png")
    click(browser, ".poison-bar button[formaction$='/fail']")
    await_text(browser, "callers get a failure, unless they have one", "dialog")
    take(browser, pictures / "told-dialog.png")


@pytest.fixture
def container() -> Iterator[Path]:
    with new_memory_group(400 << 20) as group, killed_as_a_whole(group):
        yield group


def test_NEW_19_a_page_names_the_task_that_grew(
    open_page: Any, assemble: Callable[..., Boxes], redis_url: str, container: Path
) -> None:
    boxes = assemble(Boxes, redis_url)
    for innocent in ("waits", "computes", "churns"):
        boxes.start(innocent)
    with watching(boxes):
        log = boxes.directory / "w1.log"
        worker = Confined(boxes.module, name="w1", env=boxes.environ(), cwd=ROOT, log_path=log, concurrency=4)
        worker.group = container
        with worker:
            boxes.await_that(lambda: boxes.quarantine.queries.totals()["running"] == 3, "they run")
            culprit = boxes.start("grows", 50, 2000)
            boxes.await_that(lambda: len(boxes.events("crashed")) == 4, "its end is on record")
    served = open_page(boxes, f"/poison/task/{culprit.id}", "oom, likely: box.grows grew", "black-box.png")
    served.close()
    open_page(boxes, "/poison/incidents", "oom, likely: box.grows grew", "black-box-incident.png")


def test_NEW_20_a_page_says_at_which_row_it_died(
    open_page: Any, assemble: Callable[..., Walks], redis_url: str
) -> None:
    walks = assemble(Walks, redis_url, poison_max_crashes=1)
    walks.start("once", "straight", 10_000, 7_312, "SIGSEGV")
    with walks.worker():
        walks.await_that(walks.quarantine.list, "it is in quarantine")
    (kept,) = walks.quarantine.list()
    open_page(walks, f"/poison/task/{kept.id}", "It died at item 7,312 (key 8312) of 10,000.", "row.png")


def test_NEW_18_a_task_that_is_paused_for_a_version_is_resumed_by_a_click(
    browser: Any, open_page: Any, assemble: Callable[..., Shop], redis_url: str
) -> None:
    shop = assemble(Shop, redis_url, poison_deploy_guard=True, poison_deploy_guard_wait=600)
    sent = [shop.send("convert", n) for n in range(20)]
    with shop.of("bad-1.2.3"):
        shop.await_that(lambda: shop.quarantine.pauses() and shop.parked() == 20, "paused")
        open_page(shop, "/poison", "paused, 20 messages wait untouched", "paused.png")
        assert text(browser, "#poison-verdict").startswith("bad-1.2.3 kills fleet.convert (SIGSEGV, shop.py:")
        assert "the deploy guard" in text(browser)
        shop.marks.repair()
        click(browser, RESUME)
        wait_until(lambda: not shop.quarantine.pauses(), what=shop.evidence)
        assert sorted(result.get(timeout=PATIENCE) for result in sent) == [*range(20)]


def test_NEW_21_a_failing_test_is_downloaded(
    browser: Any, open_page: Any, assemble: Callable[..., Crew], redis_url: str
) -> None:
    crew = assemble(Crew, redis_url)
    kept = _one_kept(crew, "fleet.mails", "dies")
    served = open_page(crew, f"/poison/task/{kept.id}", "Failing test", "repro.png")
    link = browser.find_element("link text", "Failing test").get_attribute("href")
    answer = served.get(link.partition(str(served.port))[2])
    assert answer.status == 200 and "fleet.mails" in answer.text
    assert "attachment" in answer.headers["Content-Disposition"]
