"""The fork in SimpleTuner's page as people see it, in a real Chromium: one test per promise of docs/WEB_UI.md."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny

from simpletuner.gh200.ramp.resume import RECORD
from tests.support.web_browser import opened
from tests.support.web_lab import CONFIG, OURS, Server

pytestmark = [pytest.mark.slow(reason="a browser, and trainings started from the page"), pytest.mark.timeout(1800)]
LIMIT = 900_000
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


@pytest.fixture
def job(tmp_path: Path, web_server: Server) -> Iterator[dict[str, Any]]:
    """The quick start's training with every block of ours, and more steps than anybody waits for."""
    lab = tiny.Lab(tmp_path)
    config = lab.config("on", max_train_steps=5000, checkpoint_step_interval=10_000, report_to="simpletuner")
    config["gh200_optimizations"] |= {"telemetry_interval": 1, "batch_rampup_steps": 4000}
    yield config
    web_server.http.post("/api/training/cancel")


def status(page: Any, begins: str) -> None:
    """Returns when the page at /gh200 shows a state."""
    page.wait_for_function(
        f"document.querySelector('[data-gh200-status]')?.innerText.startsWith('{begins}')", timeout=LIMIT
    )


def test_2_a_training_started_watched_and_stopped_from_the_page(
    chromium: Any, web_server: Server, job: dict[str, Any]
) -> None:
    # A run before in the directory that the relative path would name from the server's own.
    web_server.show("job", job | {"output_dir": "relative-run"})
    with opened(chromium, web_server) as browser, opened(chromium, web_server, 390, tab="") as phone:
        assert "Training Starting" in browser.press("runBtn", "#training-status")
        phone.page.goto(f"{phone.home}/gh200")
        status(phone.page, "Starting, since ")
        status(phone.page, "Training, since ")
        assert f"{web_server.directory}/relative-run" in phone.page.inner_text("[data-gh200-live]")
        phone.page.wait_for_selector("[data-gh200-here]", state="attached")
        shown = phone.page.inner_text("[data-gh200-status]")
        phone.page.wait_for_function(
            "text => document.querySelector('[data-gh200-status]').innerText !== text", arg=shown
        )
        rows = set(phone.page.locator("[data-gh200-rank='0'] dt").all_inner_texts())
        assert {"Effective batch", "Micro-batch", "RAM of the process", "Dataset in RAM", "Cache hits"} <= rows
        assert phone.juts_out() == []
        _check_arguments(web_server, job)
        # The same values are curves among SimpleTuner's own.
        wanted = {"gh200/resident_gb", "gh200/cache_hit_rate", "gh200/data_seconds", "gh200/effective_batch_size"}
        deadline = time.monotonic() + 120
        while not wanted <= (names := _metric_names(web_server, "job")) and time.monotonic() < deadline:
            time.sleep(2)
        assert wanted <= names
        browser.accepts = True
        browser.page.click("#cancelBtn")
        status(phone.page, "Stopped by you, since ")
        assert ", until " in phone.page.inner_text("[data-gh200-status]")


def _metric_names(server: Server, name: str) -> set[str]:
    answer = server.http.get(f"/api/metrics/training/runs/{name}")
    return set(json.dumps(answer.json()).split('"')) if answer.is_success else set()


def _check_arguments(server: Server, job: dict[str, Any]) -> None:
    """The processes of the job have every block as the page had it."""
    trainers = [words for words in server.descendants().values() if any("train.py" in word for word in words)]
    assert trainers
    for words in trainers:
        arguments = {flag.removeprefix("--"): text for flag, _, text in (word.partition("=") for word in words)}
        for key in job.keys() & {*OURS} - {"$schema"}:
            assert json.loads(arguments[key]) == job[key]


def test_2_the_preview_follows_what_is_typed(chromium: Any, web_server: Server) -> None:
    web_server.show("typed", CONFIG)
    with opened(chromium, web_server, tab="training") as browser:
        drawn = browser.page.locator("[data-gh200-preview] svg")
        drawn.wait_for()
        assert "from 1 to 4" in drawn.get_attribute("aria-label")
        browser.enter("target_effective_batch_size", 16)
        browser.page.wait_for_selector("[data-gh200-preview] svg[aria-label*='from 1 to 16']")
        browser.enter("initial_effective_batch_size", 16)
        browser.page.wait_for_selector("[data-gh200-preview] [role=alert]")
    assert web_server.read("typed") == CONFIG, "nothing was saved"


def test_3_what_a_job_was_rejected_for_is_what_the_page_shows(
    chromium: Any, web_server: Server, job: dict[str, Any]
) -> None:
    output = Path(job["output_dir"])
    output.mkdir(parents=True)
    web_server.show("rejected", job)
    with (output / ".simpletuner-gh200-run").open("w") as lock, opened(chromium, web_server) as browser:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        assert "Training Starting" in browser.press("runBtn", "#training-status")
        browser.page.wait_for_function("document.body.innerText.includes('Another run is at work')", timeout=180_000)
        assert "exited with status" not in browser.page.inner_text("body")
        browser.page.goto(f"{browser.home}/gh200")
        status(browser.page, "Failed, since ")
        error = browser.page.inner_text("[data-gh200-error]")
        assert str(output) in error and "fix: " in error


def test_3_a_wrong_value_is_marked_on_its_field(chromium: Any, web_server: Server, tmp_path: Path) -> None:
    web_server.show("wrong", CONFIG | {"output_dir": str(tmp_path)})
    with opened(chromium, web_server, tab="training") as browser:
        browser.enter("target_effective_batch_size", 0)
        field = browser.field("target_effective_batch_size")
        assert field.get_attribute("aria-invalid") == "true"
        browser.page.locator("#field-feedback-gh200_target_effective_batch_size", has_text="at least 1").wait_for()
        browser.page.evaluate("scrollTo(0, 0)")
        answer = browser.press("validateBtn", "#validation-results")
        assert "gh200_optimizations.target_effective_batch_size" in answer
        browser.page.wait_for_function(
            "document.querySelector('#gh200_target_effective_batch_size').getBoundingClientRect().top < innerHeight"
        )
        assert field.input_value() == "0", "what was typed is still there"
        browser.enter("target_effective_batch_size", 4)
        assert field.get_attribute("aria-invalid") == "false"
        # A ramp that the newest checkpoint was not made with.
        checkpoint = tmp_path / "checkpoint-10"
        checkpoint.mkdir()
        record = {"schedule": {"shape": "linear"}, "global_step": 1, "micro_step": 1, "place_in_window": 0}
        (checkpoint / RECORD).write_text(json.dumps(record | {"gradient_accumulation_steps": 1}))
        answer = browser.press("validateBtn", "#validation-results")
        assert "ramp changed" in answer and "accept_changed_ramp" in answer and "checkpoint-10" in answer


def test_5_the_quick_start_can_be_run_and_its_datasets_are_shown(
    chromium: Any, web_server: Server, tmp_path: Path
) -> None:
    config = tiny.Lab(tmp_path).config("on", output_dir=str(tmp_path / "output"))
    web_server.show("quick", config)
    answer = web_server.http.post("/api/training/validate", data=web_server.form(web_server.show("quick")))
    assert "Resolution must be" not in answer.text and "alert-danger" not in answer.text, answer.text
    with opened(chromium, web_server, tab="") as browser:
        browser.page.evaluate("document.querySelector('[data-tab=datasets]').click()")
        browser.page.get_by_text("shapes", exact=True).first.wait_for(state="attached")
        plan = web_server.http.get("/api/datasets/plan").json()["datasets"]
        assert [entry["id"] for entry in plan] == [entry["id"] for entry in config["datasets"]]
        assert browser.page.locator("[data-gh200-in-memory]").count()
    plan[0]["in_memory"] = {"compression": "zstd", "memory_limit_gb": 2}
    assert web_server.http.post("/api/datasets/plan", json={"datasets": plan}).is_success
    first = web_server.read("quick")["datasets"][0]
    assert first["type"] == "in_memory" and first["in_memory"] == plan[0]["in_memory"]


@pytest.mark.parametrize("width", [390, 1280])
def test_6_contrast_width_keyboard_and_names(chromium: Any, web_server: Server, width: int) -> None:
    web_server.show("fits", CONFIG)
    with opened(chromium, web_server, width, tab="hardware") as browser:
        page = browser.page
        for theme in ("dark", "tron", "light"):
            page.evaluate("theme => window.applyTheme(theme)", theme)
            assert browser.juts_out("#section-gh200_memory") == []
            assert browser.axe("#section-gh200_memory") == [], theme
        browser.field("vae_cache_type").focus()
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.closest('[data-field-name]')?.dataset.fieldName")
        assert focused == "gh200_text_cache_type", "every control is reached by the keyboard, in the order of the page"
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.goto(f"{browser.home}/gh200")
            page.wait_for_selector("[data-gh200-live] polyline")
            assert browser.juts_out() == []
            assert browser.axe("html") == [], scheme


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
