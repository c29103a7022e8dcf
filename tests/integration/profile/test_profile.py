"""The profile "auto": what it chooses and why, what wins over it, and that it never changes the training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import job_inputs
import pytest

from gh200_lab.pages import settings as settings_page
from simpletuner.gh200 import runtime, trainer
from simpletuner.gh200.backends.ram import hooks, staging
from simpletuner.gh200.cli import new_job
from simpletuner.gh200.config.blocks import blocks_of
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.config.schema import CacheConfig, ConfigBlock, InMemory, Optimizations, Settings
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.memory.limits import GB, Limit
from simpletuner.gh200.preflight import check
from simpletuner.gh200.preflight.memory_estimate import Memory, with_offload
from simpletuner.gh200.preflight.report import Report
from simpletuner.gh200.web.forms import parsed, settled

SHORT = {"gh200_optimizations": "auto"}
BLOCK = {"gh200_optimizations": {"profile": "auto"}}
CHOSEN = {
    "cache_config.vae_cache_type": "unified_memory",
    "cache_config.text_cache_type": "unified_memory",
    "cache_config.placement": "auto",
    "gh200_optimizations.enable_uvm_hints": True,
    "gh200_optimizations.telemetry_interval": 10,
    "gh200_optimizations.preflight": True,
    "gh200_optimizations.checkpoint_on_signal": True,
    "gh200_optimizations.enable_batch_size_rampup": False,
}
BASIC = {
    "vae_cache_type", "text_cache_type", "cache_dir", "persistent_cache",
    "enable_uvm_hints", "enable_batch_size_rampup", "initial_effective_batch_size", "target_effective_batch_size",
    "batch_rampup_steps", "compression", "num_workers", "memory_limit_gb",
    "profile", "managed_memory", "checkpoint_on_signal", "telemetry_interval",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_run() -> Iterator[None]:
    runtime.end()
    yield
    runtime.end()


def begun(settings: Settings) -> runtime.Run:
    return runtime.begin(settings, CacheOptions.from_settings(settings))


def values(settings: Settings) -> dict[str, Any]:
    blocks = {"cache_config": settings.caches, "gh200_optimizations": settings.optimizations}
    return {path: getattr(blocks[path.partition(".")[0]], path.partition(".")[2]) for path in CHOSEN}


@pytest.mark.parametrize("raw", [SHORT, BLOCK], ids=["as text", "in the block"])
def test_auto_chooses_caches_placement_telemetry_preflight_and_signals(raw: dict[str, Any]) -> None:
    settings = read_settings(raw, {})
    assert values(settings) == CHOSEN
    assert settings.uses_unified_memory("vae") and settings.uses_unified_memory("text")
    assert settings.telemetry_interval == 10 and settings.fast_start


def test_each_choice_has_its_reason_in_the_block_at_start() -> None:
    lines = begun(read_settings(SHORT, {})).lines()
    for path, value in CHOSEN.items():
        (line,) = [line for line in lines if line.startswith(f"  {path} = ")]
        assert repr(value) in line
        assert "(auto: " in line or path == "gh200_optimizations.enable_uvm_hints", line


@pytest.mark.parametrize(
    ("block", "key", "value"),
    [
        ("cache_config", "vae_cache_type", "disk"),
        ("cache_config", "placement", "pinned"),
        ("gh200_optimizations", "telemetry_interval", 0),
        ("gh200_optimizations", "preflight", False),
        ("gh200_optimizations", "checkpoint_on_signal", False),
    ],
)
def test_an_explicit_key_wins(block: str, key: str, value: object) -> None:
    raw: dict[str, Any] = {"gh200_optimizations": {"profile": "auto"}}
    raw[block] = {**raw.get(block, {}), key: value}
    settings = read_settings(raw, {})
    assert settings.origins[f"{block}.{key}"] == "training config"
    changed = {path: found for path, found in values(settings).items() if found != CHOSEN[path]}
    assert changed == {f"{block}.{key}": value}


@pytest.mark.parametrize("how", ["key", "variable"])
def test_hints_that_are_off_keep_upstreams_caches(how: str) -> None:
    block = {"profile": "auto", **({"enable_uvm_hints": False} if how == "key" else {})}
    environ = {"SIMPLETUNER_GH200_ENABLE_UVM_HINTS": "0"} if how == "variable" else {}
    settings = read_settings({"gh200_optimizations": block}, environ)
    assert settings.caches.vae_cache_type == settings.caches.text_cache_type == "disk"
    assert "enable_uvm_hints" in settings.origins["cache_config.vae_cache_type"]


def test_auto_never_chooses_the_ramp_and_leaves_an_explicit_one() -> None:
    assert not read_settings(SHORT, {}).optimizations.enable_batch_size_rampup
    asked = {"gh200_optimizations": {"profile": "auto", "target_effective_batch_size": 8}}
    assert read_settings(asked, {}).optimizations.enable_batch_size_rampup


def test_a_misspelt_profile_is_an_error_that_names_auto() -> None:
    for raw in ({"gh200_optimizations": "automatic"}, {"gh200_optimizations": {"profile": "autop"}}):
        with pytest.raises(SettingsError) as caught:
            read_settings(raw, {})
        assert '"auto"' in str(caught.value) and "gh200_optimizations" in str(caught.value)


# Datasets


def entries(tmp_path: Path) -> list[dict[str, Any]]:
    found = []
    for kind in ("image", "audio", "video", "conditioning"):
        (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / kind / "file.bin").write_bytes(b"x" * 1000)
        directory = str(tmp_path / kind)
        found.append({"id": kind, "type": "local", "dataset_type": kind, "instance_data_dir": directory})
    found[0].pop("dataset_type")
    found.append({"id": "text", "type": "local", "dataset_type": "text_embeds", "cache_dir": str(tmp_path / "text")})
    return found


def test_image_audio_and_video_datasets_go_to_ram(tmp_path: Path) -> None:
    given = entries(tmp_path)
    run = begun(read_settings(SHORT, {}, dataset_file=given))
    assert set(run.settings.in_memory) == {"image", "audio", "video"}
    (note,) = run.settings.notes
    assert note.startswith("auto: ") and "image, audio, video" in note
    assert [entry["type"] for entry in hooks.local_entries(given)] == ["local"] * 5
    known = run.part(hooks.staged_for_use().__class__)
    assert set(known.options) == {"image", "audio", "video"}
    arena = staging.stage("image", tmp_path / "image", known.options["image"])
    assert arena.files == 1


def test_a_dataset_that_does_not_fit_into_half_of_what_is_free_is_read_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries(tmp_path)
    monkeypatch.setattr(staging, "memory_limits", lambda *limit: [Limit("machine", "free memory", 1500)])
    arena = staging.stage("image", tmp_path / "image", InMemory(on_limit="disk"))
    assert arena.header["bytes"] == 0


@pytest.mark.parametrize(
    "change", [{"in_memory": False}, {"id": "audio"}], ids=["excluded", "an id that is not unique"]
)
def test_a_dataset_stays_on_disk_where_it_must(tmp_path: Path, change: dict[str, Any]) -> None:
    given = entries(tmp_path)
    given[0] |= change
    settings = read_settings(SHORT, {}, dataset_file=given)
    assert "image" not in settings.in_memory and "video" in settings.in_memory


def test_explicit_options_of_a_dataset_win(tmp_path: Path) -> None:
    given = entries(tmp_path)
    given[0] |= {"type": "in_memory", "in_memory": {"compression": "lz4"}}
    assert read_settings(SHORT, {}, dataset_file=given).in_memory["image"] == InMemory(compression="lz4")


# Memory offload

NEED = Memory(weights=20 * GB, gradients=10 * GB, optimizer=10 * GB, checkpoint=1)


@pytest.mark.parametrize(
    ("memory", "gpu", "value", "why"),
    [
        (NEED, 39 * GB, "auto", "40.0 GB, the GPU has 39.0 GB"),
        (NEED, 41 * GB, "off", "suffices"),
        (NEED, 0, "off", "no GPU"),
        (None, 39 * GB, "off", "not known"),
    ],
)
def test_offload_only_where_the_estimate_exceeds_hbm(memory: Memory | None, gpu: int, value: str, why: str) -> None:
    settings = with_offload(read_settings(SHORT, {}), {}, memory, gpu)
    assert settings.optimizations.managed_memory == value
    assert why in settings.origins["gh200_optimizations.managed_memory"]


def test_an_explicit_offload_and_a_run_without_the_profile_stay_as_they_are() -> None:
    for raw in ({"gh200_optimizations": {"profile": "auto", "managed_memory": "all"}}, {"use_gh200_trainer": True}, {}):
        settings = read_settings(raw, {})
        assert with_offload(settings, {}, NEED, GB) == settings


def test_what_only_the_profile_chose_is_left_out_where_it_is_not_possible() -> None:
    def rejected() -> None:
        raise GH200Error("Rejected here.", why="the reason")

    run = begun(read_settings(SHORT, {}))
    trainer._or_without(run, "checkpoint_on_signal", "signals", rejected)
    assert run.unavailable["signals"] == "the reason"
    explicit = begun(read_settings({"gh200_optimizations": {"checkpoint_on_signal": True}}, {}))
    with pytest.raises(GH200Error, match="Rejected here"):
        trainer._or_without(explicit, "checkpoint_on_signal", "signals", rejected)


# check, new-job, reference


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A job that new-job wrote."""
    upstream = job_inputs.upstream()
    monkeypatch.setattr(new_job, "upstream_record", lambda read, say: (upstream, ""))
    monkeypatch.setattr(check, "upstream_record", lambda read, say: (upstream, ""))
    monkeypatch.setattr(check, "key_problems", lambda config, known: ([], []))
    monkeypatch.chdir(tmp_path)
    job_inputs.model(tmp_path / "model")
    job_inputs.images(tmp_path / "images", [(64, 64)] * 4)
    words = ["images", "--model", "model", "--name", "job", "--root", str(tmp_path), "--steps", "8"]
    assert new_job.main(words) == 0
    return dict(json.loads((tmp_path / "jobs/job/config.json").read_text()))


def page(report: Report) -> list[str]:
    return "\n".join(report.lines()).splitlines()


def test_new_job_writes_auto_and_no_key_beside_it(job: dict[str, Any]) -> None:
    assert job["gh200_optimizations"] == "auto" and "cache_config" not in job
    assert "in_memory" not in job["datasets"][0] and job["datasets"][0]["type"] == "local"


def test_check_shows_the_choices_basic_keys_first(job: dict[str, Any]) -> None:
    report = check.preflight(Path("job.json"), job, 1, {}, gpu=lambda: 96 * GB)
    shown = report.facts["settings"]
    assert any("vae_cache_type = 'unified_memory'  (auto: " in line for line in shown)
    assert any("managed_memory = 'off'  (auto: " in line and "suffices" in line for line in shown)
    keys = [line.partition(" = ")[0].rpartition(".")[2] for line in shown]
    basic = [key in BASIC for key in keys]
    assert basic == sorted(basic, reverse=True) and not all(basic)
    assert report.facts["ram"]["datasets"] > 0
    assert all(any(line.endswith(setting) for line in page(report)) for setting in shown)
    assert any(line.split() == ["in", "RAM", "job"] for line in page(report))


def test_check_names_a_dataset_that_is_too_large_for_ram(job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "memory_limits", lambda: [Limit("machine", "free memory", 10)])
    report = check.preflight(Path("job.json"), job, 1, {}, gpu=lambda: 0)
    assert any("from disk: job" in line for line in page(report)) and not report.problems


def test_every_key_is_basic_or_advanced_and_the_basic_ones_come_first() -> None:
    blocks: list[type[ConfigBlock]] = [Optimizations, CacheConfig, InMemory]
    firsts = [key for block in blocks for key in list(block.model_fields)[: block.basic]]
    assert set(firsts) == BASIC and len(firsts) == 16
    rows = [
        line.split(" | ")
        for line in settings_page.page().splitlines()
        if line.startswith("| `") and line.count("|") > 5
    ]
    levels = {(number, row[0].strip("| `")): row[1] for number, row in enumerate(rows)}
    assert set(levels.values()) == {"basic", "advanced"}
    known = {key for block in blocks for key in block.model_fields}
    assert {key for _, key in levels} >= known
    assert {key for (_, key), level in levels.items() if level == "basic"} & known == BASIC


def test_fast_start_true_means_the_same_as_absent() -> None:
    for beside in ({}, {"telemetry_interval": 5}):
        block = {"fast_start": True, **beside}
        assert read_settings({"gh200_optimizations": block}, {}).fast_start
    assert not read_settings({}, {}).fast_start
    assert read_settings({"gh200_optimizations": {"telemetry_interval": 5}}, {}).fast_start


@pytest.mark.parametrize(
    "raw",
    [
        {"use_gh200_trainer": True},
        {"gh200_optimizations": {"profile": "auto", "uvm_log_interval": 5}},
        {**SHORT, "initial_effective_batch_size": 4},
    ],
)
def test_old_keys_work_with_one_line(raw: dict[str, Any]) -> None:
    notes = [note for note in read_settings(raw, {}).notes if "older spelling" in note or "no longer a key" in note]
    assert len(notes) == 1


def test_the_web_form_takes_auto_with_and_without_quotes() -> None:
    for text in ("auto", '"auto"', " auto "):
        assert parsed("gh200_optimizations", text) == "auto"
    assert settled({"gh200_optimizations": "auto"}, {"gh200_optimizations": "auto"}, {}) == (
        {"gh200_optimizations": "auto"},
        {},
    )


def test_the_web_fields_join_the_profile() -> None:
    """The page has a field for each key, saved flat; one beside the short form wins over the profile."""
    assert blocks_of({"gh200_profile": "auto"}) == BLOCK
    assert blocks_of({"--gh200_optimizations": "auto"}) == SHORT
    beside = blocks_of({"gh200_optimizations": "auto", "gh200_telemetry_interval": 5, "gh200_placement": "pinned"})
    settings = read_settings(beside, {})
    changed = {path: found for path, found in values(settings).items() if found != CHOSEN[path]}
    assert changed == {"gh200_optimizations.telemetry_interval": 5, "cache_config.placement": "pinned"}


def test_without_the_profile_nothing_is_chosen() -> None:
    for raw, environ in (
        ({}, {}),
        ({"cache_config": {"vae_cache_type": "unified_memory"}}, {}),
        ({}, dict(os.environ)),
    ):
        settings = read_settings(raw, environ)
        assert not any(origin.startswith("auto") for origin in settings.origins.values())
        assert settings.optimizations.profile == "off"
