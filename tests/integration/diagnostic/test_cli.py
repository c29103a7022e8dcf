"""The diagnostic as operators start it: with a bare Python, copied elsewhere, on bad input, and what it prints."""

from __future__ import annotations

import ast
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from diagnostic_lab import MACHINES, REPO, changed, schema_errors

from gh200_lab.pages import diagnostic as diagnostic_docs
from simpletuner.gh200.cli import doctor as diagnostic
from simpletuner.gh200.diagnostic import gpu as diagnostic_gpu
from simpletuner.gh200.diagnostic.machine import Machine, run_limited
from simpletuner.gh200.diagnostic.software import read_software
from simpletuner.gh200.diagnostic.torch_build import rejection

SCRIPT = REPO / "gh200_diagnostic.py"
# No site-packages at all: not even torch, pydantic, nvidia-ml-py or cuda-bindings.
BARE = [sys.executable, "-I", "-S"]
SCHEMA = json.loads((REPO / "docs" / diagnostic_docs.SCHEMA_FILE).read_text())
REPORT = "gh200_diagnostic_report.json"
HAS_GPU = shutil.which("nvidia-smi") is not None


def run(directory: Path, *words: object, script: Path = SCRIPT, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("GH200", "SIMPLETUNER", "PYTORCH"))
    }
    command = [*BARE, str(script), *map(str, words)]
    return subprocess.run(command, cwd=directory, env=kept | environ, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_bare_python_without_a_gpu(tmp_path: Path) -> None:
    done = run(tmp_path, "--skip-allocation")
    assert done.returncode == 1, done.stderr
    assert "no CUDA device" in done.stdout and "torch is not installed" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr and "\033" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("GH200 diagnostic: ")
    report = json.loads((tmp_path / REPORT).read_text())
    assert not schema_errors(report, SCHEMA)
    assert report["summary"]["exit_code"] == 1 and report["facts"]["software"]["torch"] is None
    assert [path.name for path in tmp_path.iterdir()] == [REPORT]


def test_runs_where_only_the_package_was_copied_with_it(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPO / "simpletuner/gh200", tmp_path / "simpletuner/gh200", ignore=ignored)
    done = run(tmp_path, "--skip-allocation", "--json", script=tmp_path / SCRIPT.name)
    report = json.loads(done.stdout)
    assert not schema_errors(report, SCHEMA) and report["facts"]["software"]["upstream_release"] is None


def test_never_runs_upstreams_own_start_up_code(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPO / "simpletuner/gh200", tmp_path / "simpletuner/gh200", ignore=ignored)
    (tmp_path / "simpletuner/__init__.py").write_text(
        '__version__ = "9.9.9"\nraise RuntimeError("upstream was imported")\n'
    )
    done = run(tmp_path, "--skip-allocation", "--json", script=tmp_path / SCRIPT.name)
    assert json.loads(done.stdout)["facts"]["software"]["upstream_release"] == "9.9.9", done.stderr


def test_copied_without_the_package(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    done = run(tmp_path, script=tmp_path / SCRIPT.name)
    assert done.returncode == 2 and done.stdout == ""
    assert "no simpletuner/gh200 beside" in done.stderr and "fix:" in done.stderr and "Traceback" not in done.stderr


BAD_WORDS = [
    (["--oversubscription-scale", text], "above 0 and up to 100") for text in ("0", "-1", "nan", "inf", "100.1", "much")
] + [
    (["--bogus"], "unrecognized"),
    (["--skip"], "unrecognized"),
    (["--output", "no/such/directory/report.json"], "No such file or directory"),
    (["--output", "."], "is a directory"),
    (["--output", "file/report.json"], "Not a directory"),
    (["--config", "absent.json"], "No such file"),
    (["--config", "broken.json"], "cannot be parsed"),
    (["--config", "list.json"], "no training config"),
    (["--config", "config.yaml"], "unknown kind"),
]


@pytest.mark.parametrize(("words", "said"), BAD_WORDS, ids=[" ".join(item[0]) for item in BAD_WORDS])
def test_bad_usage_ends_with_2_before_any_work(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "broken.json").write_text('{"a": ')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "config.yaml").write_text("a: 1")
    asked = tmp_path / "asked"
    smi(tmp_path, f"touch {asked}")
    done = run(tmp_path, *words, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / REPORT).exists() and not asked.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_in_a_directory_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    done = run(tmp_path, "--output", "closed/report.json")
    assert done.returncode == 2 and "cannot be written" in done.stderr


def test_json_has_standard_output_for_itself(tmp_path: Path) -> None:
    done = run(tmp_path, "--skip-allocation", "--json", "--output", "elsewhere.json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "elsewhere.json").read_text())


def test_quiet_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "--skip-allocation", "--quiet")
    assert len(done.stdout.splitlines()) == 1 and done.stderr == ""


def test_help_teaches(tmp_path: Path) -> None:
    done = run(tmp_path, "--help")
    assert done.returncode == 0
    for words in ("examples:", "exit code:", "--oversubscription-scale X", "--bandwidth", "docs/DIAGNOSTIC.md"):
        assert words in done.stdout


@pytest.mark.parametrize("python", [BARE, [sys.executable]], ids=["bare", "with packages"])
def test_example_config_on_a_fresh_clone(python: list[str], tmp_path: Path) -> None:
    config = REPO / "config/gh200_in_memory_example.json"
    machine = Machine(importable=lambda name: False)
    if python == BARE:
        done = run(tmp_path, "--config", config, "--skip-allocation")
        text, code = done.stdout, done.returncode
        assert "Traceback" not in done.stderr
        assert "pydantic is not installed" in text and "skip  config_settings" in text
    else:
        directory = tmp_path / "report.json"
        code = diagnostic.main(
            ["--config", str(config), "--skip-allocation", "--quiet", "--output", str(directory)], machine
        )
        text = directory.read_text()
        assert "effective batch 4 -> 32" in text
    assert code == 1 and "dataset directory datasets/train_images" in text and "does not exist" in text


def smi(directory: Path, body: str) -> Path:
    script = directory / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return script


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_nvidia_smi_alone_is_enough(tmp_path: Path) -> None:
    smi(tmp_path, "echo '0, NVIDIA GH200 480GB, 565.57.01, 9.0, 97871, 600, GPU-5d1c'")
    done = run(tmp_path, "--skip-allocation", "--json", PATH=f"{tmp_path}:{os.environ['PATH']}")
    report = json.loads(done.stdout)
    assert report["facts"]["gpus"]["source"] == "nvidia-smi"
    statuses = {check["id"]: check["status"] for check in report["checks"]}
    assert (
        statuses["cuda_device"] == "pass"
        and statuses["driver_version"] == "warn"
        and statuses["managed_memory"] == "skip"
    )


@pytest.mark.parametrize("body", ["exit 9", "echo garbage", "echo 'NVIDIA-SMI has failed' >&2; exit 9", "true"])
def test_nvidia_smi_that_answers_nonsense(body: str, tmp_path: Path) -> None:
    smi(tmp_path, body)
    machine = Machine(environ={"PATH": str(tmp_path)}, importable=lambda name: False, nvml=lambda: "no NVML")
    found = diagnostic_gpu.read_gpus(machine)
    if found.usable:
        pytest.skip("this machine has a GPU")
    assert found.devices == () and found.problems["nvidia-smi"]


def test_nvidia_smi_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A grandchild that keeps the output open must not keep us, nor live on."""
    smi(tmp_path, f"trap '' TERM\nsleep 1000 & echo $! > {tmp_path}/child\nwait")
    monkeypatch.setattr(diagnostic_gpu, "SMI_SECONDS", 1.0)

    def never() -> object:
        raise AssertionError("NVML and the driver would hang too")

    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    machine = Machine(environ=environ, importable=lambda name: False, nvml=never, driver=never)
    assert diagnostic.main(["--output", str(tmp_path / "report.json")], machine) == 1
    said = capsys.readouterr().out
    assert "no answer from nvidia-smi within 1 s" in said and "no CUDA device" in said
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the grandchild lives on")


def test_command_that_cannot_be_started(tmp_path: Path) -> None:
    smi(tmp_path, "true").chmod(0o644)
    assert "no nosuch on PATH" in run_limited(["nosuch"], 1).problem
    assert "cannot be started" in run_limited([str(tmp_path / "nvidia-smi")], 1).problem


def torch_like(directory: Path, body: str) -> Machine:
    (directory / "torch").mkdir()
    (directory / "torch/__init__.py").write_text(body)
    return Machine(environ=os.environ | {"PYTHONPATH": str(directory)}, importable=lambda name: name == "torch")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import nosuchlibrary", "ModuleNotFoundError: No module named 'nosuchlibrary'"),
        ("import os; os.abort()", "exit code -6"),
        ("import sys; sys.exit('no kernel image')", "no kernel image"),
    ],
)
def test_broken_torch_is_reported_by_its_last_line(body: str, said: str, tmp_path: Path) -> None:
    software = read_software(torch_like(tmp_path, body))
    assert software.torch is not None and software.torch.error == said


def test_torch_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simpletuner.gh200.diagnostic.torch_build.TORCH_SECONDS", 1.0)
    software = read_software(torch_like(tmp_path, "import time; time.sleep(1000)"))
    assert software.torch is not None and "no answer" in software.torch.error


@pytest.mark.parametrize(
    ("value", "rejected"),
    [
        ("use_uvm:True,uvm_oversubscription_ratio:5.0", "Unrecognized key 'use_uvm'"),
        ("expandable_segments:True", ""),
        ("backend:cudaMallocAsync", ""),
    ],
)
def test_allocator_settings_are_judged_by_the_real_torch(value: str, rejected: str) -> None:
    pytest.importorskip("torch")
    machine = Machine(environ=os.environ | {"PYTORCH_CUDA_ALLOC_CONF": value})
    answer, unasked = rejection(machine, "PYTORCH_CUDA_ALLOC_CONF")
    assert rejected in answer and bool(answer) == bool(rejected) and not unasked


def test_allocator_settings_that_torch_never_judged_are_not_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner.gh200.diagnostic.torch_build.TORCH_SECONDS", 1.0)
    machine = torch_like(tmp_path, "import time; time.sleep(1000)")
    answer, unasked = rejection(
        replace(machine, environ={**machine.environ, "PYTORCH_ALLOC_CONF": "a:1"}), "PYTORCH_ALLOC_CONF"
    )
    assert answer == "" and "no answer" in unasked


def test_allocator_settings_that_abort_torch_do_not_hide_what_it_is() -> None:
    pytest.importorskip("torch")
    software = read_software(Machine(environ=os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "bogus"}))
    assert software.torch is not None and software.torch.version and not software.torch.error
    assert software.refused_allocator_settings["PYTORCH_CUDA_ALLOC_CONF"]


def test_a_variable_is_not_judged_by_a_bare_python_which_says_so(tmp_path: Path) -> None:
    # -I would hide the variable from nobody: it only ignores those of Python itself.
    done = run(tmp_path, "--skip-allocation", GH200_UVM_ACCESS_PATTERN="gpu_frist")
    said = " ".join(done.stdout.split())
    assert "skip gh200_environment GH200_UVM_ACCESS_PATTERN=gpu_frist: not judged, pydantic is not installed" in said


def test_report_replaces_the_old_one_whole(tmp_path: Path) -> None:
    (tmp_path / REPORT).write_text("old")
    (tmp_path / "link.json").symlink_to(REPORT)
    run(tmp_path, "--skip-allocation", "--output", "link.json")
    assert json.loads((tmp_path / REPORT).read_text())["schema_version"] == 1 and (tmp_path / "link.json").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == [REPORT, "link.json"]


def test_report_into_a_pipe_leaves_the_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    run(tmp_path, "--skip-allocation", "--output", "pipe")
    reader.join(60)
    assert json.loads(read[0])["schema_version"] == 1 and (tmp_path / "pipe").is_fifo()


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    command = [*BARE, str(SCRIPT), "--skip-allocation"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stderr
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(60) in (0, 1) and "Traceback" not in errors and "BrokenPipe" not in errors
    assert (tmp_path / REPORT).exists()


def on_a_terminal(directory: Path, **environ: str) -> str:
    ours, theirs = pty.openpty()
    command = [*BARE, str(SCRIPT), "--skip-allocation"]
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    process = subprocess.Popen(command, cwd=directory, stdout=theirs, stderr=subprocess.DEVNULL, env=kept | environ)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(ours)
    process.wait(60)
    return shown.decode()


def test_colour_on_a_terminal_only_where_wanted(tmp_path: Path) -> None:
    assert "\033[32mpass\033[0m" in on_a_terminal(tmp_path)
    assert "\033" not in on_a_terminal(tmp_path, NO_COLOR="1")
    assert "\033" not in on_a_terminal(tmp_path, TERM="dumb")


@pytest.mark.parametrize("name", MACHINES)
def test_report_of_every_machine_fits_the_schema(name: str, tmp_path: Path) -> None:
    machine = changed(tmp_path, name)
    (tmp_path / "c.json").write_text(
        json.dumps({"datasets": [{"id": "d", "type": "in_memory", "instance_data_dir": str(tmp_path)}]})
    )
    target = tmp_path / "report.json"
    code = diagnostic.main(
        ["--quiet", "--bandwidth", "--config", str(tmp_path / "c.json"), "--output", str(target)], machine
    )
    report = json.loads(target.read_text())
    assert code == report["summary"]["exit_code"] == int(any(check["status"] == "fail" for check in report["checks"]))
    assert not schema_errors(report, SCHEMA)
    assert sum(report["summary"][status] for status in ("pass", "warn", "fail", "skip")) == len(report["checks"])


def test_schema_rejects_what_is_no_report(tmp_path: Path) -> None:
    diagnostic.main(
        ["--quiet", "--skip-allocation", "--output", str(tmp_path / "r.json")], changed(tmp_path, "x86_h100")
    )
    report = json.loads((tmp_path / "r.json").read_text())
    spoilt: list[Callable[[dict[str, object]], object]] = [
        lambda item: item.pop("summary"),
        lambda item: item.update(extra=1),
        lambda item: item["checks"][0].update(status="good"),  # type: ignore[index]
        lambda item: item["facts"]["host"].update(page_bytes="4096"),  # type: ignore[index]
        lambda item: item["facts"]["gpus"]["devices"][0].pop("name"),  # type: ignore[index]
    ]
    for spoil in spoilt:
        wrong = json.loads(json.dumps(report))
        spoil(wrong)
        assert schema_errors(wrong, SCHEMA)


def test_documents_are_current(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert diagnostic_docs.main(["--check", "--into", str(REPO / "docs")]) == 0, capsys.readouterr().err
    assert diagnostic_docs.main(["--check", "--into", str(tmp_path)]) == 1
    assert "--write" in capsys.readouterr().err


def test_everything_it_loads_is_python_3_10() -> None:
    """Newer syntax would stop the page before its first line on the Python a machine comes with."""
    code = (
        f"import runpy, sys; sys.argv = ['x', '--help']\ntry:\n    runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
        "except SystemExit:\n    pass\nprint(*(m.__file__ for n, m in sys.modules.items() if n.startswith('simpletuner.gh200')))"
    )
    done = subprocess.run([*BARE, "-c", code], capture_output=True, text=True, check=True)
    files = [Path(name) for name in done.stdout.splitlines()[-1].split()]
    assert len(files) > 15
    for path in [SCRIPT, *files]:
        ast.parse(path.read_text(), str(path), feature_version=(3, 10))


def old_python() -> str | None:
    """A real 3.10: what only its library lacks (`datetime.UTC`, `tomllib`) no parser notices."""
    places = [shutil.which("python3.10"), *sorted(Path.home().glob(".pyenv/versions/3.10.*/bin/python3.10"))]
    for place in filter(None, places):
        if subprocess.run([place, "--version"], capture_output=True).returncode == 0:
            return str(place)
    return None


@pytest.mark.skipif(old_python() is None, reason="there is no Python 3.10 here")
@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_a_real_python_3_10_gives_the_page(suffix: str, tmp_path: Path) -> None:
    config = tmp_path / f"config{suffix}"
    config.write_text('{"output_dir": "out"}' if suffix == ".json" else 'output_dir = "out"')
    command = [str(old_python()), "-I", "-S", str(SCRIPT), "--skip-allocation", "--config", str(config)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr
    if suffix == ".toml":
        assert done.returncode == 2 and "TOML needs Python 3.11" in done.stderr
    else:
        assert "skip  config_settings" in done.stdout and "pydantic is not installed" in done.stdout, done.stderr
