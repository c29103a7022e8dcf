"""Commands as operators type them: exit codes, the files of a diagnosis and of a rebase, and the two launch lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rebase_lab import Lab, make_lab
from tiny import FORK

from gh200_lab.place import ROOT, environment
from gh200_lab.tiny.config import write_config
from tests.golden.records import Records, shape
from tests.golden.workplace import Workplace

pytestmark = pytest.mark.timeout(900)
PYTHON = sys.executable
# With `{}` a directory that is empty but for a config with a misspelt key.
COMMANDS: dict[str, list[str]] = {
    "diagnostic, unknown option": [PYTHON, "gh200_diagnostic.py", "--no-such-option"],
    "diagnostic, missing config": [PYTHON, "gh200_diagnostic.py", "--config", "{}/absent.json"],
    "preflight, missing config": [PYTHON, "-m", "simpletuner.gh200.preflight", "{}/absent.json"],
    "preflight, misspelt key": [PYTHON, "-m", "simpletuner.gh200.preflight", "{}/typo.json"],
    "ramp, help": [PYTHON, "-m", "simpletuner.gh200.ramp", "--help"],
    "ramp, no ramp in the config": [PYTHON, "-m", "simpletuner.gh200.ramp", "{}/typo.json"],
    "watch, nothing to show": [PYTHON, "-m", "simpletuner.gh200.watch", "{}", "--once"],
    "new_job, missing directory": [PYTHON, "-m", "simpletuner.gh200.new_job", "{}/absent"],
    "rebase, unknown option": ["./execute_gh200_rebase.sh", "--no-such-option"],
    "rebase, missing upstream": ["./execute_gh200_rebase.sh", "check", "--upstream", "path:{}/absent"],
    "tests, unknown option": ["scripts/run_all_tests.sh", "--no-such-option"],
    "quick start, unknown option": ["scripts/quickstart.sh", "--no-such-option"],
    "train.py, missing config": [PYTHON, "train.py", "--config", "{}/absent.json"],
}


@pytest.mark.fork
@pytest.mark.parametrize("name", COMMANDS)
def test_exit_code(name: str, tmp_path: Path, golden: Records) -> None:
    (tmp_path / "typo.json").write_text('{"gh200_optimizations": {"enable_uvm_hint": true}}')
    command = [word.replace("{}", str(tmp_path)) for word in COMMANDS[name]]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(FORK), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
    )
    assert "Traceback" not in done.stdout + done.stderr
    golden.check("exit-codes", name, done.returncode)


def test_files_of_a_diagnosis(tmp_path: Path, golden: Records) -> None:
    command = [PYTHON, str(ROOT / "gh200_diagnostic.py"), "--skip-allocation"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    golden.check("files", "diagnostic", sorted(path.name for path in tmp_path.iterdir()))
    (report,) = tmp_path.iterdir()
    golden.check("schemas", "diagnostic", sorted(json.loads(report.read_text())))


@pytest.fixture(scope="module")
def rebase(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The real tool on the fake upstream."""
    return make_lab(tmp_path_factory.mktemp("golden-rebase"))


def test_files_and_exit_codes_of_a_rebase(rebase: Lab, golden: Records, tmp_path: Path) -> None:
    rebase.run("--skip-tests", "--upstream", rebase.upstream("v1"), code=0)
    written = [path.name for path in rebase.fork.iterdir() if path.name != ".git"]
    in_upstream = {path.name for path in (ROOT / "tests/fake_upstream/v1").iterdir()}
    golden.check("files", "rebase", sorted(set(written) - in_upstream))
    branches = rebase.git("branch", "--format=%(refname:short)").splitlines()
    golden.check("files", "branches of a rebase", sorted(name.rstrip("_0123456789") for name in branches))
    labels = [line.partition(":")[0] for line in (rebase.fork / "MERGE_LOG.txt").read_text().splitlines()]
    golden.check("schemas", "MERGE_LOG.txt", labels[1:9])
    report = tmp_path / "report.json"
    rebase.run("check", "--upstream", rebase.upstream("v2"), "--json", str(report), code=2)
    golden.check_shape("schemas", "rebase", {"check --json": shape([json.loads(report.read_text())])})
    (rebase.root.parent / "upstream-v1/simpletuner/helpers/training/trainer.py").write_text("class Other: ...\n")
    rebase.run("check", "--upstream", rebase.upstream("v1"), code=1)


LAUNCHES = {
    "guide": ["--config_file", "config/accelerate_config_cpu.yaml", "simpletuner/train.py"],
    "workflow": ["--config_file", "config/accelerate_config_cpu.yaml", "train.py"],
}


@pytest.mark.fork
@pytest.mark.parametrize("line", LAUNCHES)
def test_launch_line_trains(line: str, place: Workplace, golden: Records) -> None:
    """The documents' lines, with the CPU's Accelerate config: cold processes, from the tree each is written for."""
    config = place.lab.config("off", max_train_steps=1, gradient_accumulation_steps=1)
    output = place.directory / f"launched-{line}"
    path = write_config(config | {"output_dir": str(output)}, place.directory / "launched.json")
    launch = [str(Path(PYTHON).with_name("accelerate")), "launch", *LAUNCHES[line], "--config", str(path)]
    tree = FORK if line == "guide" else ROOT
    variables = environment(tree)
    del variables["PYTHONPATH"]
    done = subprocess.run(launch, cwd=tree, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    golden.check("files", f"run by the {line}'s launch line", sorted(path.name for path in output.iterdir()))
