"""`simpletuner gh200`: one command line, light to start, with the older entry points as shims."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simpletuner.gh200.cli.main import COMMANDS
from simpletuner.gh200.cli.train import launch_command

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.fork
# What simpletuner's own script does; the last line of its output is whether torch was loaded.
SIMPLETUNER = "import sys; sys.argv[0] = 'simpletuner'; import atexit; atexit.register(lambda: print('torch' in sys.modules)); from st_cli import main; sys.exit(main())"
OLDER = {
    "check": ["-m", "simpletuner.gh200.preflight"],
    "new-job": ["-m", "simpletuner.gh200.new_job"],
    "ramp": ["-m", "simpletuner.gh200.ramp"],
    "watch": ["-m", "simpletuner.gh200.watch"],
    "doctor": ["gh200_diagnostic.py"],
    "bench": ["-m", "gh200_lab.bench"],
}


def simpletuner(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build/fork")}
    command = [sys.executable, "-c", SIMPLETUNER, *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_light(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = simpletuner("gh200", *filter(None, [name]), "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: simpletuner gh200 {name}".rstrip()), done.stderr
    assert done.stdout.splitlines()[-1] == "False", "torch was loaded"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize("name", OLDER)
def test_an_older_entry_point_is_the_same_command(name: str) -> None:
    line = [sys.executable, *OLDER[name], "--help"]
    older = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert older.returncode == 0 and older.stdout == simpletuner("gh200", name, "--help").stdout.removesuffix("False\n")


def test_an_unknown_command_names_the_known_ones() -> None:
    done = simpletuner("gh200", "trian")
    assert done.returncode == 2 and "trian" in done.stderr and "train" in done.stderr


def test_other_commands_are_simpletuners() -> None:
    done = simpletuner("--version")
    assert done.returncode == 0 and "SimpleTuner" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_their_options(shell: str) -> None:
    done = simpletuner("gh200", "completion", shell)
    assert done.returncode == 0 and all(word in done.stdout for word in ("new-job", "--dry-run", "--effective-batch"))


@pytest.mark.parametrize(
    ("processes", "gpu", "words"),
    [
        (1, False, ["config/accelerate_config_cpu.yaml", "train.py"]),
        (1, True, ["config/accelerate_config_gh200.yaml", "train.py"]),
        (4, True, ["config/accelerate_config_gh200.yaml", "--multi_gpu", "--num_processes", "4", "train.py"]),
    ],
)
def test_the_launch_line_fits_the_machine(processes: int, gpu: bool, words: list[str]) -> None:
    line = launch_command(ROOT, Path("jobs/first/config.json"), processes, gpu)
    assert line[1:] == ["launch", "--config_file", *words, "--config", "jobs/first/config.json"]


def test_a_dry_run_prints_the_line_and_starts_nothing(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    done = simpletuner("gh200", "train", str(config), "--dry-run", "--seed=3")
    assert done.returncode == 0 and f"train.py --config {config} --seed=3" in done.stdout


def test_a_config_that_cannot_work_is_rejected_in_two_seconds_and_without_torch(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"max_train_steps": 8,}')
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = simpletuner("gh200", "train", str(tmp_path))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2 and "config.json" in done.stderr and done.stdout.splitlines()[-1] == "False"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0


def test_a_job_that_is_not_there_names_the_fix() -> None:
    done = simpletuner("gh200", "train", "jobs/nowhere")
    assert done.returncode == 2 and "jobs/nowhere" in done.stderr and "new-job" in done.stderr


def test_the_command_starts_in_a_path_with_a_space(tmp_path: Path) -> None:
    """Its first line cannot name an interpreter there; the script is written by the function of scripts/setup.sh."""
    environment = tmp_path / "with space/.venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").symlink_to(sys.executable)
    source = (ROOT / "scripts/setup.sh").read_text()
    parts = [
        source[source.index(name) :].partition("\n}\n")[0] + "\n}\n" for name in ("into() {", "write_commands() {")
    ]
    script = f'set -eu; environment=$1 here={ROOT}/scripts\n{"".join(parts)}\nwrite_commands "$environment"'
    subprocess.run(["bash", "-c", script, "write", str(environment)], check=True)
    link = tmp_path / "simpletuner"
    link.symlink_to(environment / "bin/simpletuner")
    for command in (environment / "bin/simpletuner", link):
        tried = {**os.environ, "PYTHONPATH": str(ROOT / "build/fork")}
        done = subprocess.run([str(command), "gh200", "--help"], env=tried, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "new-job" in done.stdout, done.stderr


@pytest.mark.slow(reason="makes an environment and trains twice in a clone of its own")
def test_the_commands_of_the_readme_in_a_clone_under_a_path_with_a_space(tmp_path: Path) -> None:
    clone = tmp_path / "with space"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    shutil.copytree(ROOT / "build/upstream", clone / "build/upstream")
    lines = [
        "scripts/quickstart.sh",
        ".venv/bin/simpletuner gh200 --help",
        ".venv/bin/simpletuner gh200 new-job build/quickstart/images --model build/quickstart/model --name first --steps 8",
        ".venv/bin/simpletuner gh200 train jobs/first",
        ".venv/bin/accelerate launch --help",
    ]
    for line in lines:
        done = subprocess.run(["bash", "-c", line], cwd=clone, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        if line.endswith("jobs/first"):
            assert len(done.stdout.splitlines()) < 30 and "resume" in done.stdout
