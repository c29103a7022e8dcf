"""The GH200 tab as people see it, in Debian's chromium with Playwright: desktop and phone, no error and no other host."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fork.web_browser import opened
from tests.fork.web_lab import CONFIG, OURS, Server

pytestmark = pytest.mark.slow(reason="a browser")
RAMP = CONFIG["gh200_optimizations"]


def test_web_ui_browser_finds_changes_saves_and_loads_again(chromium: Any, web_server: Server) -> None:
    web_server.show("seen", CONFIG)
    before = web_server.read("seen")
    with opened(chromium, web_server, tab=False) as browser:
        page = browser.page
        page.fill("#sidebar-search", "gh200")
        page.locator(".search-result-item", has_text="GH200").first.click()
        browser.wait_for_tab()
        browser.enter("target_effective_batch_size", "8")
        assert browser.block() == RAMP | {"target_effective_batch_size": 8}
        # On and off, and back to the default: the key is gone again.
        page.select_option(browser.control("preflight"), "false")
        assert browser.block()["preflight"] is False
        page.select_option(browser.control("preflight"), "")
        # Another tab and back: what was typed is still there.
        page.click(".tab-btn[data-tab=basic]")
        page.wait_for_selector("[data-gh200-tab]", state="detached")
        page.click(".tab-btn[data-tab=gh200]")
        browser.wait_for_tab()
        assert page.input_value(browser.control("target_effective_batch_size")) == "8"
        assert browser.save() == 200
    after = web_server.read("seen")
    expected = {key: before[key] for key in OURS} | {"gh200_optimizations": RAMP | {"target_effective_batch_size": 8}}
    assert {key: after.get(key) for key in OURS} == expected
    with opened(chromium, web_server) as browser:
        assert browser.page.input_value(browser.control("target_effective_batch_size")) == "8"
        assert browser.block("datasets") == CONFIG["datasets"]
        # The other way round: what is typed into the block shows in the controls, and what none shows stays.
        browser.page.fill(browser.text(), json.dumps(RAMP | {"batch_rampup_steps": 3, "mine": [1]}))
        assert browser.page.input_value(browser.control("batch_rampup_steps")) == "3"
        browser.enter("batch_rampup_steps", "5")
        assert browser.block() == RAMP | {"batch_rampup_steps": 5, "mine": [1]}


def test_web_ui_browser_refuses_broken_json_and_names_a_typo(chromium: Any, web_server: Server) -> None:
    web_server.show("wrong", CONFIG)
    before = web_server.path("wrong").read_bytes()
    with opened(chromium, web_server) as browser:
        browser.expected = "422"
        browser.page.fill(browser.text(), '{"preflight": }')
        assert browser.page.inner_text("[data-gh200-error=gh200_optimizations]")
        assert browser.save() == 422
        assert "gh200_optimizations is not JSON: Expecting value: line 1 column 15" in browser.page.inner_text("body")
        assert web_server.path("wrong").read_bytes() == before
        browser.page.fill(browser.text(), '{"batch_rampup_step": 4}')
        assert 'Did you mean "batch_rampup_steps"?' in browser.press("validateBtn", "#validation-results")
        browser.page.fill(browser.text(), '{"batch_rampup_step": ')
        assert "line 1 column 23" in browser.press("runBtn", "#training-status")


def test_web_ui_browser_two_of_them_on_one_config(chromium: Any, web_server: Server) -> None:
    web_server.show("both", CONFIG)
    with opened(chromium, web_server) as first, opened(chromium, web_server) as second:
        second.expected = "409"
        first.enter("batch_rampup_steps", "6")
        assert first.save() == 200
        second.enter("batch_rampup_steps", "7")
        assert second.save() == 409
        assert "changed on disk" in second.page.inner_text("body")
        assert web_server.read("both")["gh200_optimizations"]["batch_rampup_steps"] == 6
        assert second.save() == 200, "told once, saved again: the file is replaced and kept"
        assert web_server.read("both")["gh200_optimizations"]["batch_rampup_steps"] == 7
        assert len(list(web_server.configs.glob("both.json.backup-*"))) == 1
        second.enter("batch_rampup_steps", "9")
        assert second.save() == 200, "its own save is what the page shows now"


def test_web_ui_browser_config_changes_on_disk_under_it(chromium: Any, web_server: Server) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    web_server.write(hostile, CONFIG)
    many = [{**CONFIG["datasets"][0], "id": f"pictures-{number}"} for number in range(5000)]
    web_server.show("under", CONFIG | {"datasets": many})
    with opened(chromium, web_server) as browser:
        browser.expected = "409"
        browser.enter("batch_rampup_steps", "6")
        web_server.write("under", CONFIG | {"datasets": many, "gh200_optimizations": RAMP | {hostile: 1}, hostile: 1})
        assert browser.save() == 409
        refused = browser.page.locator("[data-gh200-refused]")
        assert "changed on disk" in refused.inner_text() and hostile in refused.inner_text()
        assert browser.block()["batch_rampup_steps"] == 6, "what was typed is still there"
    assert hostile in web_server.read("under")
    with opened(chromium, web_server) as browser:
        browser.enter("batch_rampup_steps", "6")
        assert browser.save() == 200
    after = web_server.read("under")
    assert after["gh200_optimizations"] == RAMP | {hostile: 1, "batch_rampup_steps": 6} and after["datasets"] == many
    web_server.path(hostile).unlink()


@pytest.mark.parametrize("width", [390, 1280])
def test_web_ui_browser_tab_fits_the_screen_and_is_dark(chromium: Any, web_server: Server, width: int) -> None:
    web_server.show("fits", CONFIG)
    with opened(chromium, web_server, width) as browser:
        assert browser.juts_out() == []
        ours = [browser.colours(f"[data-gh200-tab] {tag}") for tag in ("input", "select", "textarea")]
        browser.page.evaluate("document.querySelector('[data-tab=basic]').click()")
        browser.page.wait_for_selector("#tab-content input.form-control", state="attached")
        assert set(ours) == {browser.colours("#tab-content input.form-control")}
