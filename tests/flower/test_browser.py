"""What people do, in a real browser, with a worker that a task kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By

from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.flower.conftest import Serve
from tests.flower.served import ANN, FlowerServer
from tests.quarantine.keeping import Keeper


def visit(browser: Any, flower: FlowerServer, path: str) -> None:
    browser.get(flower.url.replace("//", f"//{flower.user}@" if flower.user else "//") + path)


def text(browser: Any, selector: str = "body") -> str:
    return " ".join(element.text for element in browser.find_elements(By.CSS_SELECTOR, selector))


def click(browser: Any, selector: str) -> None:
    wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, selector), timeout=10, what=selector)
    browser.find_element(By.CSS_SELECTOR, selector).click()


def await_text(browser: Any, wanted: str, selector: str = "body", timeout: float = 20) -> None:
    def there() -> bool:
        try:
            return wanted in text(browser, selector)
        except Exception:  # the element was replaced while it was read
            return False

    wait_until(there, timeout=timeout, what=lambda: f"{wanted!r} in\n{text(browser)[:3000]}")


@pytest.mark.timeout(150)
def test_a_click_on_release_puts_the_poison_back_and_the_repaired_task_finishes(
    browser: Any, serve: Serve, fleet: Fleet, keeper: Keeper, pictures: Path
) -> None:
    released = fleet.send("kill_child")
    with fleet.worker(concurrency=1):
        wait_until(lambda: fleet.quarantine.list(), timeout=60, what=fleet.log_text)
        flower = serve(user=ANN)
        visit(browser, flower, "/")
        click(browser, "nav a[href='/poison']")
        await_text(browser, "killed its process by SIGKILL", "#poison-rows")
        browser.save_screenshot(str(pictures / "list.png"))
        fleet.marks.repair()
        click(browser, "#poison-rows button[data-preview]")
        await_text(browser, "Release 1 message?", "dialog")
        browser.save_screenshot(str(pictures / "dialog.png"))
        browser.find_element(By.ID, "poison-note").send_keys("repaired")
        click(browser, "#poison-do")
        await_text(browser, "1 message released")
        assert released.get(timeout=30) == "repaired"
        await_text(browser, "Nothing is in quarantine")
        (entry,) = [e for e in fleet.quarantine.queries.journal() if e["event"] == "released"]
        assert (entry["actor"], entry["note"]) == ("ann (flower)", "repaired")
