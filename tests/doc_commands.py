"""How each command of the documents is run by a test: as it stands, by a test of its own, or not here and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """Run by test_docs.py, in a directory like a checkout, or `at_root` where it only reads; `more` makes it short."""

    codes: tuple[int, ...] = (0,)
    at_root: bool = False
    more: str = ""
    marks: tuple[str, ...] = ()
    slow: str = ""  # why, where it takes long
    needs: str = ""  # a file of the checkout; without it the command is skipped


@dataclass(frozen=True)
class Elsewhere:
    """Run by another test, whose file holds `mentions`: the program, or the words that start it."""

    test: str
    mentions: str


@dataclass(frozen=True)
class Program:
    """Needs a program that few machines have; run, cut short by `more`, where it is there."""

    name: str
    why: str
    more: str | None = None


How = Run | Elsewhere | Program

DIAGNOSTIC = "tests/integration/diagnostic/test_cli.py"
ALLOCATION = "tests/integration/diagnostic/test_allocation.py"
ACCEPTANCE = "tests/integration/diagnostic/acceptance/test_acceptance.py"
REBASE = "tests/integration/rebase/test_cli.py"
SETUP = "tests/integration/scripts/test_setup.py"
BENCH = "tests/integration/lab/test_cache_bench.py"
SCRIPTS = "tests/e2e/test_validation_scripts.py"
EXAMPLE = Elsewhere("tests/docs/test_docs.py::test_the_worked_example_of_a_rebase", "worked example")
BISECT = Elsewhere(
    "tests/integration/rebase/test_bisect.py::test_bisect_names_the_commit_that_broke_or_moved_an_edit", "bisect"
)
CHECKOUT = Elsewhere("tests/integration/rebase/test_workspace.py", '"checkout", "-q", "gh200-reintegration"')
LAUNCH = Elsewhere("tests/e2e/test_settings_loaders.py::test_config_flag_under_each_launcher", "accelerate")
NEW_JOB = Elsewhere("tests/e2e/test_new_job.py::test_a_job_trains_by_the_printed_line", "new_job")
FAMILY = Elsewhere("tests/e2e/test_new_job.py::test_a_job_trains_a_transformer_family", "make_family")
OWN_JOB = Elsewhere("tests/e2e/test_new_job.py::test_a_job_is_timed_as_a_baseline", "capture_baseline.sh")
SBATCH = Elsewhere(
    "tests/integration/preemption/test_sbatch.py::test_a_warned_job_stops_and_is_requeued",
    "gh200.sbatch",
)
BASELINE = Elsewhere(f"{SCRIPTS}::test_a_baseline_is_kept_compared_and_not_lost", "capture_baseline.sh")
COMBINED = Elsewhere(f"{SCRIPTS}::test_the_features_together_with_an_attention_backend", "test_combined_features.sh")
UPSTREAM = Elsewhere(
    "tests/integration/lab/test_validation_upstream.py::test_the_command_from_end_to_end", "upstream_features"
)
CLI = Elsewhere("tests/integration/cli/test_commands.py::test_help_is_light", "gh200")
# Both outcomes are right: without a GPU the diagnostic has a check that fails.
ANY_MACHINE = (0, 1)
TRAIN = (
    "accelerate launch --config_file config/accelerate_config_gh200.yaml simpletuner/train.py"
    " --config config/your_config.json"
)

COMMANDS: dict[str, How] = {
    # set-up
    "scripts/quickstart.sh": Elsewhere(
        "tests/e2e/test_quickstart.py::test_quick_start_trains_with_everything_on", "scripts/quickstart.sh"
    ),
    "scripts/setup.sh": Elsewhere(f"{SETUP}::test_full_environment_sees_the_fork", "setup.sh"),
    "scripts/setup.sh --keep-torch": Elsewhere(f"{SETUP}::test_a_vendors_torch_is_kept", "--keep-torch"),
    "scripts/lock_environment.sh --upstream VERSION && scripts/setup.sh": Elsewhere(
        "tests/integration/scripts/test_environment.py::test_locks_are_what_their_inputs_give", "lock_environment.sh"
    ),
    ".venv/bin/python -m gh200_lab.web_assets": Elsewhere(
        "tests/integration/web/test_assets.py::test_packages_are_vendored_with_their_licences", "web_assets"
    ),
    "source .venv/bin/activate": Run(),
    "source scripts/setup_gh200_env.sh": Elsewhere(
        "tests/integration/scripts/test_env_script.py::test_env_script_as_the_operator_types_it", "setup_gh200_env.sh"
    ),
    "cp config/gh200_in_memory_example.json config/your_config.json": Run(),
    # diagnostic
    "python gh200_diagnostic.py": Elsewhere(
        f"{DIAGNOSTIC}::test_json_has_standard_output_for_itself", "gh200_diagnostic.py"
    ),
    ".venv/bin/python gh200_diagnostic.py": Run(ANY_MACHINE),
    "python3 gh200_diagnostic.py --skip-allocation": Elsewhere(
        f"{DIAGNOSTIC}::test_bare_python_without_a_gpu", "--skip-allocation"
    ),
    "python gh200_diagnostic.py --oversubscription-scale 1.5": Run(ANY_MACHINE, slow="allocates and copies memory"),
    "python gh200_diagnostic.py --bandwidth": Elsewhere(
        f"{ALLOCATION}::test_bandwidth_measures_three_paths_both_ways", "--bandwidth"
    ),
    ".venv/bin/python gh200_diagnostic.py --bandwidth": Run(ANY_MACHINE, slow="allocates and copies memory"),
    ".venv/bin/python gh200_diagnostic.py --config config/your_config.json": Elsewhere(
        f"{DIAGNOSTIC}::test_example_config_on_a_fresh_clone", "--config"
    ),
    "python gh200_diagnostic.py --skip-allocation --config config/your_config.json": Run(ANY_MACHINE),
    ".venv/bin/python gh200_diagnostic.py --acceptance": Elsewhere(
        f"{ACCEPTANCE}::test_of_a_bare_python", "--acceptance"
    ),
    ".venv/bin/python gh200_diagnostic.py --acceptance --large --output FILE": Elsewhere(
        f"{ACCEPTANCE}::test_large_is_only_tried_when_asked", "--large"
    ),
    # training
    TRAIN: LAUNCH,
    # a job of one's own
    "simpletuner gh200 new-job build/quickstart/images --model build/quickstart/model --name first --steps 8": CLI,
    "simpletuner gh200 doctor": CLI,
    "simpletuner gh200 train jobs/first": CLI,
    "scripts/new_job.sh datasets/photos --model models/sdxl-base --name photos": NEW_JOB,
    ".venv/bin/python -m gh200_lab.tiny.transformer build/tiny-sd3": FAMILY,
    "scripts/new_job.sh build/quickstart/images --model build/tiny-sd3 --name sd3 --steps 8": FAMILY,
    "python -m simpletuner.gh200.preflight jobs/photos/config.json": Elsewhere(
        "tests/integration/preflight/test_preflight.py::test_the_preflight_command_answers_in_json_and_exit_codes",
        "simpletuner.gh200.preflight",
    ),
    f"{TRAIN} --resume_from_checkpoint=latest": Elsewhere(
        "tests/e2e/test_bit_identical.py::test_a_killed_and_resumed_run_equals_the_uninterrupted_one",
        "resume",
    ),
    ".venv/bin/accelerate launch --config_file config/accelerate_config_gh200.yaml train.py"
    " --config jobs/photos/config.json": LAUNCH,
    "sbatch scripts/slurm/gh200.sbatch jobs/photos/config.json": SBATCH,
    "sbatch --nodes=2 --gpus-per-node=4 scripts/slurm/gh200.sbatch jobs/photos/config.json": SBATCH,
    "accelerate launch": LAUNCH,
    "python train.py": LAUNCH,
    "python -m simpletuner.gh200.ramp config/your_config.json": Run(),
    "python -m simpletuner.gh200.ramp --processes 1 config/your_config.json": Run(),
    # measurements
    "nvidia-smi dmon -s u": Program("nvidia-smi", "needs an NVIDIA driver", " -c 1"),
    "nvidia-smi dmon -s pucm -d 5": Program("nvidia-smi", "needs an NVIDIA driver", " -c 1"),
    "numastat -m": Program("numastat", "needs the package numactl", ""),
    f"nsys profile --trace=cuda,nvtx,osrt --output=run {TRAIN} --max_train_steps=50": Program(
        "nsys", "needs Nsight Systems, a GPU and a model"
    ),
    "python -m gh200_lab.bench staging": Elsewhere(
        f"{BENCH}::test_bench_command_writes_a_table_json_and_a_plot", "bench"
    ),
    "python -m gh200_lab.bench offload --check": Run(
        more=" --quick", slow="a benchmark", needs="build/fork/simpletuner"
    ),
    "python -m gh200_lab.bench ramp": Elsewhere(f"{BENCH}::test_bench_command_writes_a_table_json_and_a_plot", "bench"),
    "pytest tests/unit/ramp -k bf16_sums": Run(at_root=True, more=" --collect-only -q"),
    "python -m gh200_lab.bench.ramp_study --output docs/ramp_study.png": Elsewhere(
        "tests/integration/ramp/test_noise_schedule.py::test_study_draws_its_plot",
        "gh200_lab.bench.ramp_study",
    ),
    ".venv/bin/python -m gh200_lab.bench step": Run(
        more=" --quick --rounds 1", slow="a benchmark", needs="build/fork/simpletuner"
    ),
    ".venv/bin/python -m gh200_lab.bench start": Elsewhere(
        "tests/e2e/test_upstream_reports.py::test_the_benchmark_of_a_start_runs_in_small", "start"
    ),
    ".venv/bin/python -m gh200_lab.bench start --million": Elsewhere(
        "tests/e2e/test_upstream_reports.py::test_the_benchmark_of_a_start_runs_in_small", "start"
    ),
    ".venv/bin/python -m gh200_lab.bench caches": Elsewhere(
        f"{BENCH}::test_unified_bench_reads_and_collates_every_way", "bench"
    ),
    ".venv/bin/python -m gh200_lab.bench warm": Elsewhere(
        f"{BENCH}::test_warm_cache_bench_reads_ahead_and_beside_its_peers", "bench"
    ),
    ".venv/bin/python -m gh200_lab.bench all": Elsewhere(
        f"{BENCH}::test_bench_command_writes_a_table_json_and_a_plot", "bench"
    ),
    "scripts/capture_baseline.sh": BASELINE,
    "scripts/capture_baseline.sh --config jobs/first/config.json --steps 40 --output baseline/first": OWN_JOB,
    "scripts/capture_baseline.sh --compare baseline/": BASELINE,
    "scripts/capture_baseline.sh --steps 200": BASELINE,
    "scripts/capture_baseline.sh --steps 200 --compare baseline/": BASELINE,
    "scripts/capture_baseline.sh --steps 200 --trace": Program("nvidia-smi", "the profiler's trace needs a GPU"),
    # rebase
    "./execute_gh200_rebase.sh status": Run(at_root=True),
    "./execute_gh200_rebase.sh check --upstream pypi:latest": Run(
        (0, 2), at_root=True, marks=("network",), slow="downloads and analyses a release"
    ),
    "./execute_gh200_rebase.sh --upstream pypi:latest --dry-run": Run(
        (0, 2), at_root=True, marks=("network",), slow="downloads and analyses a release"
    ),
    "./execute_gh200_rebase.sh --upstream pypi:latest": Elsewhere(
        f"{REBASE}::test_apply_gives_pristine_import_and_one_commit_per_patch", "lab.run"
    ),
    "./execute_gh200_rebase.sh --skip-tests": Elsewhere(
        f"{REBASE}::test_second_run_says_already_there_and_changes_nothing", "--skip-tests"
    ),
    "./execute_gh200_rebase.sh --rollback": Elsewhere(
        f"{REBASE}::test_rollback_gives_the_very_bytes_back", "--rollback"
    ),
    "sh ROLLBACK.sh": Elsewhere(
        "tests/integration/rebase/test_workspace.py::test_the_script_alone_asks_and_rolls_back", "ROLLBACK.sh"
    ),
    "git checkout -- patches/lock.json": Elsewhere(
        f"{REBASE}::test_a_broken_lock_says_how_to_restore_it", "git checkout"
    ),
    "./execute_gh200_rebase.sh matrix": EXAMPLE,
    "./execute_gh200_rebase.sh retire": Elsewhere(
        "tests/integration/rebase/test_lifecycle.py::test_retire_runs_the_reproduction", "retire"
    ),
    "./execute_gh200_rebase.sh watch-upstream": Elsewhere(
        "tests/integration/rebase/test_watch_upstream.py::test_a_release_that_changes_nothing_of_ours_is_ready",
        "watch-upstream",
    ),
    "./execute_gh200_rebase.sh watch-upstream --skip-tests": Elsewhere(
        "tests/integration/rebase/test_watch_upstream.py::test_a_release_that_changes_nothing_of_ours_is_ready",
        "watch-upstream",
    ),
    "./execute_gh200_rebase.sh lock": EXAMPLE,
    "./execute_gh200_rebase.sh manifest": EXAMPLE,
    "git clone -q . build/example": EXAMPLE,
    "cd build/example": EXAMPLE,
    "./execute_gh200_rebase.sh lock --from 4.4.1 --to 4.4.1": EXAMPLE,
    "./execute_gh200_rebase.sh --dry-run --upstream pypi:4.5.0": EXAMPLE,
    "./execute_gh200_rebase.sh explain 05 --upstream pypi:4.5.0": EXAMPLE,
    "./execute_gh200_rebase.sh explain NN": Elsewhere(
        f"{REBASE}::test_explain_shows_the_inserted_line_in_its_surroundings", "explain"
    ),
    "./execute_gh200_rebase.sh check --upstream pypi:latest --propose": Elsewhere(
        "tests/integration/rebase/test_propose.py::test_propose_finds_the_place_and_writes_the_variant", "--propose"
    ),
    "git -C ../SimpleTuner bisect start v4.5.0 v4.4.1": BISECT,
    'git -C ../SimpleTuner bisect run "$PWD/execute_gh200_rebase.sh" check --upstream path:.': BISECT,
    "git notes --ref=gh200 show": Elsewhere(
        "tests/integration/rebase/test_reproducible.py::test_reproducible_fork_in_two_directories", "--ref=gh200"
    ),
    "./execute_gh200_rebase.sh verify build/fork": Elsewhere(
        "tests/integration/rebase/test_reproducible.py::test_reproducible_tree_is_verified", "verify"
    ),
    "./execute_gh200_rebase.sh wheel": Run(
        at_root=True, marks=("network",), slow="builds a wheel", needs="build/fork/simpletuner"
    ),
    "./execute_gh200_rebase.sh lock --from 4.4.1 --to 4.5.0": EXAMPLE,
    "git diff --stat": EXAMPLE,
    "git checkout": CHECKOUT,
    "git checkout gh200-reintegration": CHECKOUT,
    # validation, tests and generated pages
    "scripts/test_upstream_features.sh": UPSTREAM,
    "scripts/test_upstream_features.sh --full": UPSTREAM,
    "scripts/test_gh200_features.sh": Elsewhere(f"{SCRIPTS}::test_each_feature_by_itself", "test_gh200_features.sh"),
    "scripts/test_combined_features.sh": COMBINED,
    "scripts/test_combined_features.sh --manual-validation": Elsewhere(
        f"{SCRIPTS}::test_manual_requests_during_a_ramp", "--manual-validation"
    ),
    "scripts/test_combined_features.sh --audio": Elsewhere(f"{SCRIPTS}::test_an_audio_dataset_in_memory", "--audio"),
    "scripts/gates.sh": Run(at_root=True, more=" --help"),
    "scripts/run_all_tests.sh": Run(at_root=True, more=" --help"),
    "scripts/run_all_tests.sh --fast": Run(at_root=True, more=" --help"),
    "scripts/run_all_tests.sh --full": Run(at_root=True, more=" --help"),
    "pytest tests/unit/ramp tests/integration/ramp tests/e2e/test_ramp.py": Run(
        at_root=True, more=" --collect-only -q"
    ),
    ".venv/bin/python -m pytest tests/unit/backends/tensors tests/integration/backends/tensors"
    " tests/integration/cuda_sim tests/e2e/test_tensor_caches.py": Run(at_root=True, more=" --collect-only -q"),
    ".venv/bin/python -m pytest tests/integration/preemption tests/integration/rank_check"
    " tests/e2e/test_preemption.py tests/e2e/test_fsdp2.py": Run(at_root=True, more=" --collect-only -q"),
    ".venv/bin/python -m pytest tests/e2e/test_offload.py --fork": Run(
        at_root=True, more=" --collect-only -q", slow="collects every test"
    ),
    "python -m simpletuner.gh200.watch OUTPUT_DIR": Elsewhere(
        "tests/integration/telemetry/test_watch.py", "gh200.watch"
    ),
    "python -m simpletuner.gh200.watch jobs/first/output": Elsewhere(
        "tests/integration/telemetry/test_watch.py::test_watch_refreshes_in_a_terminal_and_ends_well", "in_terminal"
    ),
    "python -m simpletuner.gh200.watch --once --json jobs/first/output": Elsewhere(
        "tests/integration/telemetry/test_watch.py::test_watch_once_as_json_for_scripts_without_torch", "--json"
    ),
    "python -m gh200_lab.pages.telemetry --write": Elsewhere(
        "tests/unit/telemetry/test_files.py", "telemetry_docs.main"
    ),
    "python -m gh200_lab.pages.module_paths --write": Elsewhere("tests/docs/test_module_paths.py", "module_paths.main"),
    "python -m gh200_lab.pages.settings --write": Elsewhere("tests/unit/config/test_sources.py", "settings_docs.main"),
    "python -m gh200_lab.pages.diagrams --write": Elsewhere("tests/docs/test_diagrams.py", "diagrams.main"),
    "python -m gh200_lab.pages.diagnostic --write": Elsewhere(
        f"{DIAGNOSTIC}::test_documents_are_current", "diagnostic_docs.main"
    ),
}
