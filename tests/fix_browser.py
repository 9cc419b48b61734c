"""A real Chromium for tests of pages, and a dashboard in a process of its own.

Skipped where Playwright, of the extra ``browser``, or a Chromium is missing. With ``METAQ_PICTURES=FOLDER`` tests write
the pictures of the documentation there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_broker import first_line

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    OpenPage = Callable[..., Page]

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
PATIENCE_MS = 60_000
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 780}


def chromium_path() -> str | None:
    """Return the Chromium of this machine."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for the tests of one file: Playwright keeps an event loop in the thread while it is there."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make test-browser")
    if (path := chromium_path()) is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[OpenPage]:
    """Return a function that opens an address in a window of its own.

    Errors of scripts fail the test, and so do requests to other servers: pages work without internet.
    """
    wrong: list[str] = []
    with ExitStack() as stack:

        def open_one(url: str, **options: Any) -> Page:
            given = {"viewport": WIDE, "locale": "en-GB", "timezone_id": "UTC", "color_scheme": "light", **options}
            context = chromium.new_context(**given)
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
            page.on("console", lambda message: _note(wrong, message.type, message.text))
            page.on("request", lambda request: _note_elsewhere(wrong, request.url))
            page.goto(url)
            return page

        yield open_one
    assert wrong == []


def _note(wrong: list[str], kind: str, text: str) -> None:
    """Keep errors. Servers that are away, and refusals that a test asks for, are what some tests are about."""
    if kind == "error" and not re.search(r"net::ERR_|status of (4|5)\d\d|Failed to fetch", text):
        wrong.append(text)


def _note_elsewhere(wrong: list[str], url: str) -> None:
    if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
        wrong.append(f"a request to {url}")


class Dashboard:
    """``metaq dashboard`` in a process; ``stop`` and ``start`` keep the port."""

    def __init__(self, cluster: str, *arguments: str) -> None:
        self._cluster, self._arguments = cluster, arguments
        self._port = "0"
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "metaq.cli.main", "-c", self._cluster, "dashboard", "--port", self._port]
        self._process = subprocess.Popen([*command, *self._arguments], stdout=subprocess.PIPE, text=True)
        match = re.search(r"(http://127\.0\.0\.1:(\d+))/", first_line(self._process))
        assert match is not None
        self.url, self._port = match[1], match[2]

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@pytest.fixture
def start_dashboard() -> Iterator[Callable[..., Dashboard]]:
    """Return a function that starts a dashboard for a cluster."""
    with ExitStack() as stack:

        def start(cluster: str, *arguments: str) -> Dashboard:
            dashboard = Dashboard(cluster, *arguments)
            stack.callback(dashboard.stop)
            dashboard.start()
            return dashboard

        yield start


def picture(page: Page, name: str) -> None:
    """Write a picture of the page for the documentation, if that is asked for."""
    folder = os.environ.get("METAQ_PICTURES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{folder}/{name}.png")
