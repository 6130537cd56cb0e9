"""Flowers for fleets, and a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.apps.harness import Fleet
from tests.flower.served import FlowerServer
from tests.services import need

Serve = Callable[..., FlowerServer]


@pytest.fixture
def serve(fleet: Fleet) -> Iterator[Serve]:
    """A function that starts a Flower for the fleet, or for another one."""
    with ExitStack() as servers:

        def start(*options: str, of: Fleet = fleet, **more: Any) -> FlowerServer:
            return servers.enter_context(closing(FlowerServer(of, *options, **more))).wait_ready()

        yield start


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One headless Chromium for all tests."""
    binary, driver_binary = shutil.which("chromium"), shutil.which("chromedriver")
    need(binary and driver_binary, "chromium")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"),
        *("disable-background-networking", "disable-component-update", "disable-dev-shm-usage"),
        *("window-size=1280,900", f"user-data-dir={tmp_path_factory.mktemp('chromium')}"),
    ):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_binary))
    driver.set_page_load_timeout(30)
    yield driver
    # A Chromium that hangs at its end would hold the run up for the two minutes that a page may take.
    driver.command_executor.client_config.timeout = 20
    with suppress(Exception):
        driver.quit()


@pytest.fixture
def browser(chromium: Any) -> Any:
    """The browser, without cookies of the last test."""
    chromium.delete_all_cookies()
    chromium.set_window_size(1280, 900)
    return chromium


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: POISON_SCREENSHOTS, else nowhere that stays."""
    return Path(os.environ.get("POISON_SCREENSHOTS") or tmp_path)
