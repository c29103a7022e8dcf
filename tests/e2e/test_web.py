"""The fork in SimpleTuner's page as people see it, in a real Chromium: one test per promise of docs/WEB_UI.md."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.web_browser import opened
from tests.support.web_lab import CONFIG, OURS, Server

pytestmark = pytest.mark.slow(reason="a browser")
RAMP = CONFIG["gh200_optimizations"]


def test_1_every_key_is_a_field_that_search_finds_and_a_save_keeps(chromium: Any, web_server: Server) -> None:
    exact = RAMP | {"mine": [1.0, None, True, [[0.1, "\u00e9"]], {"deeper": []}]}
    web_server.show("seen", CONFIG | {"gh200_optimizations": exact})
    before = web_server.read("seen")
    with opened(chromium, web_server, tab="") as browser:
        page = browser.page
        for words in ("target_effective_batch_size", "Target Effective Batch"):
            page.fill("#sidebar-search", words)
            page.locator(".search-result-item", has_text="Target Effective Batch Size").first.wait_for()
        page.locator(".search-result-item", has_text="Target Effective Batch Size").first.click()
        browser.wait_for_tab("training")
        assert browser.field("target_effective_batch_size").input_value() == "4"
        browser.enter("target_effective_batch_size", 8)
        # Keys of the ramp are there while it is on; advanced ones are folded.
        assert not browser.field("batch_rampup_table").is_visible()
        browser.unfold("batch_ramp")
        assert browser.field("batch_rampup_table").is_visible()
        browser.enter("enable_batch_size_rampup", False)
        assert not browser.field("target_effective_batch_size").is_visible()
        browser.enter("enable_batch_size_rampup", True)
        assert browser.field("target_effective_batch_size").is_visible()
        # Another tab and back: what was typed is still there.
        browser.open_tab("hardware")
        assert browser.field("vae_cache_type").input_value() == "unified_memory"
        browser.enter("text_cache_type", "unified_memory")
        browser.open_tab("training")
        assert browser.field("target_effective_batch_size").input_value() == "8"
        assert browser.save() == 200
    expected = {key: before[key] for key in OURS}
    expected["gh200_optimizations"] = exact | {"target_effective_batch_size": 8}
    expected["cache_config"] = CONFIG["cache_config"] | {"text_cache_type": "unified_memory"}
    after = web_server.read("seen")
    assert json.dumps({key: after.get(key) for key in OURS}, sort_keys=True) == json.dumps(expected, sort_keys=True)


def test_1_a_block_removed_in_the_json_is_gone(chromium: Any, web_server: Server) -> None:
    web_server.show("emptied", CONFIG)
    with opened(chromium, web_server, tab="training") as browser:
        browser.edit_json(lambda config: {key: config[key] for key in config if key != "gh200_optimizations"})
        assert browser.save() == 200
    after = web_server.read("emptied")
    assert {key: after.get(key) for key in OURS} == {key: CONFIG[key] for key in OURS} | {"gh200_optimizations": None}


def test_1_two_tabs_on_one_config(chromium: Any, web_server: Server) -> None:
    web_server.show("both", CONFIG)
    with opened(chromium, web_server, tab="training") as first, opened(chromium, web_server, tab="training") as second:
        second.expected = "409"
        first.enter("batch_rampup_steps", 6)
        assert first.save() == 200
        second.enter("batch_rampup_steps", 7)
        assert second.save() == 409
        assert "changed on disk" in second.page.inner_text("body")
        assert second.field("batch_rampup_steps").input_value() == "7", "what was typed is still there"
        assert web_server.read("both")["gh200_optimizations"]["batch_rampup_steps"] == 6
        assert second.save() == 200, "rejected once, saved again: the file is replaced and kept"
        assert web_server.read("both")["gh200_optimizations"]["batch_rampup_steps"] == 7
        assert len(list(web_server.configs.glob("both.json.backup-*"))) == 1
        second.enter("batch_rampup_steps", 9)
        assert second.save() == 200, "its own save is what the page shows now"


def test_4_a_page_of_another_site_changes_nothing(chromium: Any, web_server: Server) -> None:
    web_server.show("guarded", CONFIG)
    before = web_server.path("guarded").read_bytes()
    home = f"http://127.0.0.1:{web_server.port}"
    context = chromium.new_context()
    page = context.new_page()
    # The other site: any page whose address is not the server's.
    page.route("http://elsewhere.test/", lambda route: route.fulfill(content_type="text/html", body=_HOSTILE % home))
    with page.expect_response(f"{home}/api/training/config") as answer:
        page.goto("http://elsewhere.test/")
    assert answer.value.status == 403
    assert web_server.path("guarded").read_bytes() == before
    context.close()
    # Programs name no site.
    assert httpx.post(f"{home}/api/training/validate", data={"--lora_rank": "4"}, timeout=120).status_code == 200
    log = web_server.log.read_text(errors="replace")
    assert f"ssh -L {web_server.port}:127.0.0.1:{web_server.port}" in log and "WARNING: any client" not in log


_HOSTILE = """<form method=post action="%s/api/training/config"><input name=--learning_rate value=0.5></form>
<script>document.forms[0].submit()</script>"""
