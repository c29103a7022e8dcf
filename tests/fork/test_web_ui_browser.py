"""The GH200 tab as people see it, in Debian's chromium with Playwright: desktop and phone, no error and no other host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browser import need_browser
from tests.fork.web_lab import CONFIG, Server

pytestmark = pytest.mark.slow
LIMIT = 120_000
# Upstream's sdist has no sounds, and asks for them.
UPSTREAMS = ("/api/sounds/",)
READY = "window.Alpine?.store('trainer')?.activeEnvironmentConfig != null"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright here; uv pip install playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=need_browser(), args=["--no-sandbox", "--disable-quic"])
        yield browser
        browser.close()


@contextmanager
def opened(chromium: Any, server: Server, width: int = 1280) -> Iterator[Any]:
    """A browser of its own with our tab open; at its end no error was shown and no other host was asked."""
    context = chromium.new_context(viewport={"width": width, "height": 1000})
    page, wrong = context.new_page(), []
    home = f"http://127.0.0.1:{server.port}"
    page.set_default_timeout(LIMIT)
    page.on("pageerror", lambda error: wrong.append(f"page error: {error}"))
    page.on(
        "request",
        lambda request: None if request.url.startswith((home, "data:", "blob:")) else wrong.append(request.url),
    )

    def said(message: Any) -> None:
        where = message.location.get("url", "")
        if (
            message.type == "error"
            and not any(path in where for path in UPSTREAMS)
            and page.expected not in message.text
        ):
            wrong.append(f"{message.text} ({where})")

    page.expected = "\0"
    page.on("console", said)
    page.goto(f"{home}/web/trainer#gh200")
    page.wait_for_function(READY)
    page.evaluate("document.querySelector('[data-tab=gh200]').click()")
    page.wait_for_selector("[data-gh200-tab]")
    page.wait_for_function("document.querySelector('[data-gh200-text=gh200_optimizations]').value.includes('batch')")
    try:
        yield page
        assert wrong == []
    finally:
        context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_web_ui_tab_fits_the_screen(chromium: Any, web_server: Server, width: int) -> None:
    web_server.show("fits", CONFIG)
    with opened(chromium, web_server, width) as page:
        found = page.evaluate(
            """() => [...document.querySelectorAll("[data-gh200-tab] *")].filter((each) => {
                 const box = each.getBoundingClientRect();
                 return box.width && (box.right > innerWidth + 1 || box.left < -1);
               }).map((each) => each.outerHTML.slice(0, 80))"""
        )
        assert found == []
