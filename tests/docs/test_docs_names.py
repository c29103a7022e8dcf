"""Every name in the documents exists: variables, flags, keys, error messages; and the guide has every name of the contract."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from simpletuner.gh200.web import fields
from tests.doc_pages import ROOT, Page, pages, section

OURS = ("simpletuner", "gh200_rebase", "gh200_lab", "scripts", "config", "patches", "tests/cuda_sim")
ROOT_FILES = ("execute_gh200_rebase.sh", "gh200_diagnostic.py", "train.py", "pyproject.toml", "tests/conftest.py")
# Names that are not ours, by origin.
FOREIGN = {
    "upstream": """SIMPLETUNER_ACCELERATE_SIGNAL_FILE TRAINER_EXTRA_ARGS --resume_from_checkpoint --max_train_steps
        musubi_blocks_to_swap optimizer_cpu_offload_method manual_validation manual_checkpoint cache_dir_vae cache_dir_text
        lr_scale num_train_epochs max_train_steps checkpoints_total_limit checkpoint_step_interval slider_strength
        delete_invalid_checkpoints SIMPLETUNER_FAULTHANDLER_DIR SIMPLETUNER_PROCESS_GROUP_TIMEOUT_SECONDS dataloader_prefetch
        gradient_checkpointing dataloader_prefetch_device_threshold_mb lora_format""",
    "CUDA, PyTorch, Accelerate": """CUDA_VISIBLE_DEVICES TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD --enable_cpu_affinity use_uvm
        uvm_oversubscription_ratio uvm_access_pattern num_machines num_processes machine_rank main_process_ip --main_process_port --multi_gpu
        --num_processes fsdp_activation_checkpointing""",
    "the system and its tools": """--cuda-um-gpu-page-faults --cuda-um-cpu-page-faults --trace --output --cpunodebind --membind
        --memory --mem --ulimit --shm-size --gpus --stat init_on_alloc --gpus-per-node --nodes --gpu-bind --signal""",
}
# Named in the guide as things that do not exist.
NEVER_THERE = {"--enable_manual_validation", "validate_uvm", "_prepare_uvm_tensor", "_prepare_text_embed_tensor"}

CONTRACT = {
    "files": """execute_gh200_rebase.sh GH200_REBASE_CHECKLIST.md gh200_diagnostic.py gh200_diagnostic_report.json patches/
        GH200_PATCH_MANIFEST.md scripts/setup_gh200_env.sh scripts/test_upstream_features.sh scripts/test_gh200_features.sh
        scripts/test_combined_features.sh scripts/run_all_tests.sh ROLLBACK.sh MERGE_LOG.txt gh200-current.patch
        config/accelerate_config_gh200.yaml config/gh200_in_memory_example.json GH200_WORKFLOW.md baseline/ baseline_report.txt
        nvidia_smi.log simpletuner/train.py documentation/""",
    "Python": """gh200_uvm_enabled set_uvm_hint_override prefer_cpu_residency prefer_gpu_residency prefetch_to_device
        optimize_batch_for_gh200 GH200InMemoryBackend GH200GradientRamp Trainer._configure_gh200_runtime
        Trainer._apply_dynamic_gradient_accumulation Trainer.gh200_ramp_scheduler StateTracker.set_raw_config get_raw_config
        set_gh200_runtime_config get_gh200_runtime_config InMemoryBackendBuilder helpers/data_backend/builders/in_memory.py""",
    "environment": """SIMPLETUNER_GH200_ENABLE_UVM_HINTS GH200_UVM_OVERSUBSCRIPTION_RATIO GH200_UVM_ACCESS_PATTERN
        PYTORCH_CUDA_ALLOC_CONF ACCELERATE_MIXED_PRECISION gpu_first cpu_first balanced bf16 use_uvm:True 5.0""",
    "config": """cache_config vae_cache_type text_cache_type unified_memory cache_dir persistent_cache gh200_optimizations
        enable_uvm_hints enable_batch_size_rampup initial_effective_batch_size target_effective_batch_size batch_rampup_steps
        use_gh200_trainer data_backend datasets data_backend_config in_memory compression lz4 num_workers memory_limit_gb""",
    "flags": """--config --oversubscription-scale --skip-allocation --attention --diagnostic --manual-validation --manual --backend
        --audio --full --level""",
    "levels": "unit integration system performance",
    "names that do not exist": """--enable_manual_validation validate_uvm.py _prepare_uvm_tensor _prepare_text_embed_tensor
        audio_support_snippet.py""",
}


@cache
def our_text() -> str:
    files = [path for top in OURS for path in sorted((ROOT / top).rglob("*")) if path.suffix in _TEXT]
    return "\n".join(path.read_text(encoding="utf-8") for path in [*files, *(ROOT / name for name in ROOT_FILES)])


_TEXT = {".py", ".sh", ".json", ".yaml", ".toml", ".c", ".h"}


def known(word: str) -> bool:
    foreign = {name for names in FOREIGN.values() for name in names.split()}
    # The validation scripts make their options from the names of their scenarios.
    if word in foreign | fields.keys().keys() or f'Scenario("{word.removeprefix("--")}",' in our_text():
        return True
    return bool(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", our_text()))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_variables_exist(page: Page) -> None:
    found = set(re.findall(r"(?<![\w./])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w.])", page.text))
    assert sorted(name for name in found if not known(name)) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_flags_exist(page: Page) -> None:
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", page.text)) - NEVER_THERE
    assert sorted(name for name in found if not known(name)) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_keys_and_functions_exist(page: Page) -> None:
    """Words with an underscore that stand alone in a code span, or as a key in an example."""
    spans = {part for span in page.spans() for part in re.findall(r"^[\w.]+(?=\(|$)", span)}
    keys = set(re.findall(r'"(\w+)":', "\n".join([*page.blocks("json"), *page.spans()])))
    words = {
        word for name in spans | keys for word in name.split(".") if re.fullmatch(r"_?[a-z0-9]+(_[a-z0-9]+)+", word)
    }
    assert sorted(word for word in words - NEVER_THERE if not known(word)) == []


def test_names_of_upstream_are_upstreams() -> None:
    pristine = ROOT / "build" / "pristine" / "simpletuner"
    if not pristine.is_dir():
        pytest.skip("there is no pristine upstream in build/pristine")
    missing = {name.removeprefix("--") for name in FOREIGN["upstream"].split()}
    for path in pristine.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        missing -= {name for name in missing if name in text}
    assert missing == set()


@pytest.mark.parametrize("kind", CONTRACT)
def test_the_guide_has_every_name_of_the_contract(kind: str) -> None:
    guide = (ROOT / "docs" / "GH200_GUIDE.md").read_text(encoding="utf-8")
    assert [name for name in CONTRACT[kind].split() if name not in guide] == []


# --- TROUBLESHOOTING ---


@cache
def messages() -> str:
    """All text constants of our programs; what is filled in at run time is left out of them."""
    found = []
    for path in [
        path
        for top in ("simpletuner/gh200", "gh200_rebase", "gh200_lab", "scripts")
        for path in (ROOT / top).rglob("*")
    ]:
        if path.suffix == ".sh":
            found.append(path.read_text(encoding="utf-8"))
        elif path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def rows() -> list[str]:
    """First cells of the tables; messages of another program name it."""
    page = Path(ROOT / "docs" / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
    cells = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| `")]
    return [cell for cell in cells if "(from " not in cell]


@pytest.mark.parametrize("cell", rows())
def test_a_message_of_the_troubleshooting_page_is_ours(cell: str) -> None:
    found = re.fullmatch(r"`([^`]+)`", cell)
    assert found and found[1] in messages()


def test_the_troubleshooting_page_has_messages() -> None:
    assert len(rows()) > 40


# --- files ---

PLACEHOLDERS = {"config/your_config.json", "config/examples/minimal.json", "patches/NN-topic.toml"}
TOPS = "scripts|config|patches|tests|docs|requirements|gh200_rebase|gh200_lab|simpletuner/gh200"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_files_exist(page: Page) -> None:
    """What a code span names as a file of this repository is one."""
    found = {path for span in page.spans() for path in re.findall(rf"(?<![\w./-])(?:{TOPS})/[\w/.-]*\w\.\w+", span)}
    assert sorted(path for path in found - PLACEHOLDERS if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("package", ["simpletuner/gh200", "gh200_rebase", "gh200_lab"])
def test_every_module_is_in_a_table(package: str) -> None:
    page = next(page for page in pages() if page.name == "docs/ARCHITECTURE.md")
    rows = [line.split("|")[1:3] for line in section(page, f"## `{package}`").splitlines() if line.startswith("|")]
    named = [directory.strip(" `") + name for directory, names in rows for name in re.findall(r"`([a-z_0-9]+)`", names)]
    files = (path.relative_to(ROOT / package) for path in (ROOT / package).rglob("*.py"))
    modules = [path.with_suffix("").as_posix() for path in files if path.stem not in ("__init__", "__main__")]
    assert sorted(named) == sorted(modules)
