"""Our blocks in upstream's page as people see them, in Debian's chromium with Playwright: no error and no other host."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.web_browser import opened
from tests.support.web_lab import CONFIG, OURS, Server

pytestmark = pytest.mark.slow(reason="a browser")
RAMP = CONFIG["gh200_optimizations"]


def test_finds_changes_saves_and_loads_again(chromium: Any, web_server: Server) -> None:
    exact = RAMP | {"mine": [1.0, None, True, [[0.1, "\u00e9"]], {"deeper": []}]}
    web_server.show("seen", CONFIG | {"gh200_optimizations": exact})
    before = web_server.read("seen")
    changed = exact | {"target_effective_batch_size": 8}
    with opened(chromium, web_server, tab=False) as browser:
        page = browser.page
        page.fill("#sidebar-search", "gh200")
        page.locator(".search-result-item", has_text="GH200 Optimizations").first.click()
        browser.wait_for_tab()
        assert browser.block() == exact
        browser.enter(changed)
        # Another tab and back: what was typed is still there.
        page.evaluate("document.querySelector('[data-tab=basic]').click()")
        page.wait_for_selector("textarea[name=cache_config]", state="attached")
        assert json.loads(page.input_value("textarea[name=cache_config]")) == CONFIG["cache_config"]
        browser.open_tab()
        assert browser.block() == changed
        assert browser.save() == 200
    after = web_server.read("seen")
    expected = {key: before[key] for key in OURS} | {"gh200_optimizations": changed}
    assert json.dumps({key: after.get(key) for key in OURS}, sort_keys=True) == json.dumps(expected, sort_keys=True)
    with opened(chromium, web_server) as browser:
        assert browser.block() == changed


def test_an_emptied_block_is_gone(chromium: Any, web_server: Server) -> None:
    web_server.show("emptied", CONFIG)
    with opened(chromium, web_server) as browser:
        browser.enter("")
        assert browser.save() == 200
    after = web_server.read("emptied")
    assert {key: after.get(key) for key in OURS} == {key: CONFIG[key] for key in OURS} | {"gh200_optimizations": None}


def test_rejects_broken_json_and_names_a_typo(chromium: Any, web_server: Server) -> None:
    web_server.show("wrong", CONFIG)
    before = web_server.path("wrong").read_bytes()
    with opened(chromium, web_server) as browser:
        browser.expected = "422"
        browser.enter('{"preflight": }')
        assert browser.save() == 422
        assert "gh200_optimizations is not JSON: Expecting value: line 1 column 15" in browser.page.inner_text("body")
        assert web_server.path("wrong").read_bytes() == before
        browser.enter('{"batch_rampup_step": 4}')
        assert 'Did you mean "batch_rampup_steps"?' in browser.press("validateBtn", "#validation-results")
        browser.enter('{"batch_rampup_step": ')
        assert "line 1 column 23" in browser.press("runBtn", "#training-status")


def test_two_of_them_on_one_config(chromium: Any, web_server: Server) -> None:
    web_server.show("both", CONFIG)
    with opened(chromium, web_server) as first, opened(chromium, web_server) as second:
        second.expected = "409"
        first.enter(RAMP | {"batch_rampup_steps": 6})
        assert first.save() == 200
        second.enter(RAMP | {"batch_rampup_steps": 7})
        assert second.save() == 409
        assert "changed on disk" in second.page.inner_text("body")
        assert web_server.read("both")["gh200_optimizations"]["batch_rampup_steps"] == 6
        assert second.save() == 200, "rejected once, saved again: the file is replaced and kept"
        assert web_server.read("both")["gh200_optimizations"]["batch_rampup_steps"] == 7
        assert len(list(web_server.configs.glob("both.json.backup-*"))) == 1
        second.enter(RAMP | {"batch_rampup_steps": 9})
        assert second.save() == 200, "its own save is what the page shows now"


def test_config_changes_on_disk_under_it(chromium: Any, web_server: Server) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    web_server.write(hostile, CONFIG)
    many = [{**CONFIG["datasets"][0], "id": f"images-{number}"} for number in range(5000)]
    web_server.show("under", CONFIG | {"datasets": many})
    with opened(chromium, web_server) as browser:
        browser.expected = "409"
        browser.enter(RAMP | {"batch_rampup_steps": 6})
        web_server.write("under", CONFIG | {"datasets": many, "gh200_optimizations": RAMP | {hostile: 1}, hostile: 1})
        assert browser.save() == 409
        rejected = browser.page.locator("[data-gh200-rejected]")
        assert "changed on disk" in rejected.inner_text() and hostile in rejected.inner_text()
        assert browser.block()["batch_rampup_steps"] == 6, "what was typed is still there"
    assert hostile in web_server.read("under")
    with opened(chromium, web_server) as browser:
        # The tab with the megabytes of inline datasets has been open too.
        browser.page.evaluate("document.querySelector('[data-tab=basic]').click()")
        browser.page.wait_for_selector("textarea[name=datasets]", state="attached")
        browser.open_tab()
        browser.enter(RAMP | {hostile: 1, "batch_rampup_steps": 6})
        assert browser.save() == 200
    after = web_server.read("under")
    assert after["gh200_optimizations"] == RAMP | {hostile: 1, "batch_rampup_steps": 6} and after["datasets"] == many
    web_server.path(hostile).unlink()


@pytest.mark.parametrize("width", [390, 1280])
def test_page_of_the_run_fits_the_screen(chromium: Any, web_server: Server, width: int) -> None:
    web_server.show("fits", CONFIG)
    with opened(chromium, web_server, width, tab=False) as browser:
        browser.page.goto(f"{browser.home}/gh200")
        browser.page.wait_for_selector("[data-gh200-live] polyline")
        assert browser.juts_out() == []
