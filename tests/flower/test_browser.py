"""What people do, in a real browser, with a worker that a task kills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flower.views
import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from celery_poison.testing import RedisServer, wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN, FlowerServer

THEMES = Path(flower.views.__file__).parents[1] / "static" / "js" / "theme.js"


def visit(browser: Any, served: FlowerServer, path: str) -> None:
    browser.get(served.url.replace("//", f"//{served.user}@" if served.user else "//") + path)


def text(browser: Any, selector: str = "body") -> str:
    return " ".join(element.text for element in browser.find_elements(By.CSS_SELECTOR, selector))


def click(browser: Any, selector: str) -> None:
    def clicked() -> bool:
        found = browser.find_elements(By.CSS_SELECTOR, selector)
        try:
            browser.execute_script(
                "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found[0]
            )
            found[0].click()
        except (IndexError, WebDriverException):  # not there yet; or moved by a refresh under the pointer
            return False
        return True

    wait_until(clicked, what=selector)


def await_text(browser: Any, wanted: str, selector: str = "body", timeout: float = PATIENCE) -> None:
    def there() -> bool:
        try:
            return wanted in text(browser, selector)
        except Exception:  # the element was replaced while it was read
            return False

    wait_until(there, timeout=timeout, what=lambda: f"{wanted!r} in\n{text(browser)[:3000]}")


def test_a_click_on_release_puts_the_poison_back_and_the_repaired_task_finishes(
    browser: Any, serve: Serve, fleet: Fleet, keeper: Keeper, pictures: Path
) -> None:
    released = fleet.send("kill_child")
    with fleet.worker(concurrency=1):
        wait_until(lambda: fleet.quarantine.list(), what=fleet.log_text)
        served = serve(user=ANN)
        visit(browser, served, "/")
        click(browser, "nav a[href='/poison']")
        await_text(browser, "SIGKILL", "#poison-rows")
        browser.save_screenshot(str(pictures / "list.png"))
        fleet.marks.repair()
        click(browser, "#poison-rows button[data-preview]")
        await_text(browser, "Release 1 message?", "dialog")
        browser.save_screenshot(str(pictures / "dialog.png"))
        browser.find_element(By.ID, "poison-note").send_keys("repaired")
        click(browser, "#poison-do")
        await_text(browser, "1 message released")
        assert released.get(timeout=PATIENCE) == "repaired"
        await_text(browser, "Nothing is in quarantine")
        # Not the note: a worker that is quicker than the page completes the release, and knows no note.
        (entry,) = [e for e in fleet.quarantine.queries.journal() if e["event"] == "released"]
        assert entry["actor"] == "ann (flower)"


def fits(browser: Any) -> bool:
    """Whether nothing sticks out to the right."""
    wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    return bool(browser.execute_script(wide))


@pytest.mark.matrix
def test_fail_makes_the_waiting_caller_raise(
    browser: Any, serve: Serve, fleet: Fleet, keeper: Keeper, pictures: Path
) -> None:
    failed = fleet.send("os_exit")
    keeper.keep(keeper.receive(), cause="exit:7")
    served = serve(user=ANN)
    visit(browser, served, f"/poison/task/{failed.id}")
    await_text(browser, "ended its process with exit code 7")
    await_text(browser, "moved to quarantine", ".poison-timeline")
    browser.save_screenshot(str(pictures / "message.png"))
    click(browser, "button[formaction$='/fail']")
    await_text(browser, "Fail 1 message?", "dialog")
    browser.find_element(By.ID, "poison-note").send_keys("hopeless")
    click(browser, "#poison-do")
    await_text(browser, "1 message failed")
    with pytest.raises(Exception, match="hopeless"):
        failed.get(timeout=PATIENCE)
    visit(browser, served, f"/poison/task/{failed.id}")
    await_text(browser, "failed by ann (flower): hopeless", "[aria-labelledby='poison-audit']")


@pytest.mark.matrix
def test_a_group_is_a_link_and_everything_that_matches_is_acted_on_and_nothing_else(
    browser: Any, serve: Serve, fleet: Fleet, keeper: Keeper, pictures: Path
) -> None:
    for _ in range(55):
        keeper.send_and_keep("fleet.kill_child")
    other = [keeper.send_and_keep("fleet.segfault", cause="signal:11") for _ in range(2)]
    served = serve(user=ANN)
    visit(browser, served, "/poison")
    await_text(browser, "of 57", "#poison-pages")
    browser.save_screenshot(str(pictures / "groups.png"))
    click(browser, "#poison-groups tbody tr:first-child td:nth-child(3) a")
    await_text(browser, "of 55", "#poison-pages")
    click(browser, "#poison-bar input[name='everything']")
    click(browser, "#poison-bar button[formaction$='/discard']")
    await_text(browser, "Discard 55 messages?", "dialog")
    late = keeper.send_and_keep("fleet.kill_child")
    browser.find_element(By.ID, "poison-note").send_keys("a test")
    click(browser, "#poison-do")
    wait_until(lambda: len(fleet.quarantine.list()) == 3, what="55 are given up")
    await_text(browser, "55")
    assert {record.mid for record in fleet.quarantine.list()} == {*other, late}


def test_a_page_stays_fresh_without_losing_ticks_or_focus_and_works_with_the_keyboard(
    browser: Any, serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    keeper.send_and_keep("fleet.kill_child")
    served = serve(user=ANN)
    visit(browser, served, "/poison")
    tick = browser.find_element(By.CSS_SELECTOR, "#poison-rows input[name='ids']")
    tick.send_keys(Keys.SPACE)
    row = browser.find_element(By.CSS_SELECTOR, "#poison-rows button[name='only']")
    browser.execute_script("arguments[0].focus()", row)
    newer = keeper.send_and_keep("fleet.segfault", cause="signal:11")
    await_text(browser, "SIGSEGV", "#poison-rows")
    assert browser.find_element(By.ID, f"m-{newer}")
    assert tick.is_selected()  # the element is still the same one
    assert browser.switch_to.active_element == row
    row.send_keys(Keys.ENTER)
    await_text(browser, "Release 1 message?", "dialog")
    assert browser.switch_to.active_element.get_attribute("id") == "poison-note"
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_until(lambda: browser.switch_to.active_element == row, what="focus goes back")
    live = browser.find_element(By.ID, "poison-live")
    live.send_keys(Keys.SPACE)
    assert (live.text, live.get_attribute("aria-pressed")) == ("Paused", "false")


@pytest.mark.matrix
def test_nothing_can_be_asked_for_with_nothing_ticked(
    browser: Any, serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    keeper.send_and_keep("fleet.kill_child")
    served = serve(user=ANN)
    visit(browser, served, "/poison")
    (release,) = browser.find_elements(By.CSS_SELECTOR, "#poison-bar button[formaction$='/release']")
    assert not release.is_enabled()

    def tick(selector: str) -> None:
        # By script: a page that is refreshed meanwhile moves things away from under the pointer.
        browser.execute_script("document.querySelector(arguments[0]).click()", selector)

    for choice in ("#poison-rows input[name='ids']", "#poison-bar input[name='everything']", "#poison-all"):
        tick(choice)
        assert release.is_enabled(), choice
        tick(choice)
        assert not release.is_enabled(), choice
    keeper.send_and_keep("fleet.segfault", cause="signal:11")
    await_text(browser, "SIGSEGV", "#poison-rows")
    assert not release.is_enabled(), "after a refresh, too"


def test_the_dot_is_red_while_redis_is_away_and_green_again_after(
    browser: Any,
    serve: Serve,
    new_fleet: Callable[..., Fleet],
    new_server: Callable[..., RedisServer],
    redis_url: str,
) -> None:
    ledger = new_server()
    fleet = new_fleet(redis_url, poison_redis_url=ledger.url(0))
    keeper = Keeper(fleet.app)
    keeper.sign()
    keeper.close()
    served = serve(user=ANN, of=fleet)
    visit(browser, served, "/poison")
    await_text(browser, "Live", "#poison-live")
    ledger.pause()
    try:
        await_text(browser, "No news from Redis", "#poison-live")
        assert browser.find_elements(By.CSS_SELECTOR, "#poison-live .status-dot-error")
        visit(browser, served, "/poison")  # also on a page that is opened only now
        await_text(browser, "No news from Redis", "#poison-live", timeout=2)
    finally:
        ledger.resume()
    await_text(browser, "Live", "#poison-live")
    assert browser.find_elements(By.CSS_SELECTOR, "#poison-live .status-dot-live")


@pytest.mark.skipif(not THEMES.exists(), reason="this Flower has no themes")
@pytest.mark.parametrize(("theme", "width"), sampled([("dark", 390)], [("dark", 1280), ("light", 390)]))
def test_pages_fit_a_dark_and_a_narrow_screen(
    browser: Any, serve: Serve, fleet: Fleet, keeper: Keeper, pictures: Path, theme: str, width: int
) -> None:
    mid = keeper.send_and_keep("fleet.kill_child", argsrepr="('invoice-4711',)")
    keeper.send_and_keep("fleet.hard_limit", cause="time_limit")
    died(keeper)
    served = serve(user=ANN)
    visit(browser, served, "/poison")
    browser.execute_script("localStorage.setItem('flower-theme', arguments[0])", theme)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        for name, path in (
            ("list", "/poison"),
            ("given-up", "/poison?state=FAIL"),
            ("message", f"/poison/message/{mid}"),
            ("edit", f"/poison/edit/{mid}"),
            ("block", f"/poison/block?id={mid}"),
            ("incidents", "/poison/incidents?span=1h"),
        ):
            visit(browser, served, path)
            await_text(browser, "Quarantine")
            assert fits(browser), path
            (where,) = browser.find_elements(By.CSS_SELECTOR, "html")
            assert where.get_attribute("data-bs-theme") == theme
            browser.save_screenshot(str(pictures / f"{name}-{theme}-{width}.png"))
        drawn = [
            each for each in browser.find_elements(By.CSS_SELECTOR, ".poison-picture") if each.is_displayed()
        ]
        assert {each.size["width"] < 400 for each in drawn} == {width < 768}, (
            "of workers and of their processes"
        )
        sizes = "return arguments[0].querySelector('.axis').getBoundingClientRect().height"
        assert browser.execute_script(sizes, drawn[0]) > 9, "pixels of a figure on an axis"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def died(keeper: Keeper) -> None:
    """Put some incidents on record, as monitors leave them."""
    client, keys = keeper.ledger.client, keeper.ledger.keys
    now = client.time()[0] * 1000
    for number, (before, took) in enumerate([(3000, 1.2), (1500, 2.5), (1480, 1.9), (300, 14.0)]):
        at = now - before * 1000
        incident = {
            "incident": f"i{number}",
            "worker": f"w{number}@host/b00t",
            "cause": "oom",
            "how": "gone",
            "died_at": at,
            "noticed_at": at + 1000,
            "finished_at": at + int(took * 1000),
            "flagged": 1,
        }
        client.hset(keys.incident(f"i{number}"), mapping=incident)
        client.zadd(keys.incidents, {f"i{number}": at})
        running = {"event": "crashed", "incident": f"i{number}", "mid": f"m{number}", "id": f"t{number}"}
        newest = client.xrevrange(keys.journal, count=1)[0][1]
        client.xadd(keys.journal, {**newest, **running, "task": "shop.render", "cause": "worker_lost"})
