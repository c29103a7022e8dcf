"""The simulated GPU from outside: its command line, its build, its nvidia-smi, several processes at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda_sim.needed import cuda_sim_or_skip
from tests.cuda_sim.processes import HERE, NO_COMPILER, CannotBuild, build, clean_environment, run

RUN = HERE / "run.sh"
CROSS_COMPILER = "aarch64-linux-gnu-gcc"
USE = """
import sys
sys.path.insert(0, {checks!r})
from driver import *
with context():
    block = managed(PAGE)
    print([prefetch(block, PAGE, DEVICE) for _ in range(8)])
    call("cuMemFree_v2", block)
"""
COUNT = """
import ctypes, sys
sys.path.insert(0, {checks!r})
from driver import call
call("cuInit", 0)
print([call("cuDeviceGetCount", ctypes.byref(ctypes.c_int())) for _ in range(8)])
"""


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    cuda_sim_or_skip()


def asked(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RUN, *words], env=clean_environment() | environment, capture_output=True, text=True)


def test_prints_the_documented_line(tmp_path: Path) -> None:
    code = "import torch; print(torch.cuda.device_count(), torch.ones(3, device='cuda:1').sum().item())"
    done = run(["--devices", "2"], [sys.executable, "-c", code], tmp_path / "report")
    assert (done.code, done.output) == (0, "2 3.0\n"), done.errors
    assert done.violations() == [] and done.reports[0]["unhandled_launches"] == 0


def test_help_lists_every_option() -> None:
    done = asked("--help")
    options = [
        "--devices N",
        "--hbm-mb N",
        "--managed-mb N",
        "--mode MODE",
        "--family NAME",
        "--page-kb N",
        "--fail-every N",
        "--report FILE",
    ]
    assert done.returncode == 0 and all(option in done.stdout for option in options)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no command to run"),
        (["--devices", "0", "true"], "--devices needs a whole number from 1 to 16, got '0'"),
        (["--devices", "many", "true"], "got 'many'"),
        (["--hbm-mb", "-5", "true"], "--hbm-mb needs a whole number"),
        (["--managed-mb"], "--managed-mb needs a value"),
        (["--mode", "hmm", "true"], "--mode is numa, cdmm, pcie or pool, got 'hmm'"),
        (["--page-kb", "16", "true"], "--page-kb is 4 or 64, got '16'"),
        (["--fail-every", "0", "true"], "--fail-every needs a whole number from 1"),
        (["--report", "/nowhere/at/all", "true"], "there is no directory /nowhere/at"),
        (["--frobnicate", "true"], "unknown option: --frobnicate"),
        (["no-such-program-here"], "there is no command 'no-such-program-here'"),
    ],
)
def test_rejects_with_one_error(words: list[str], said: str) -> None:
    done = asked(*words)
    assert done.returncode == 2 and done.stdout == "" and said in done.stderr, done.stderr
    assert done.stderr.count("error:") == 1 and "fix:" in done.stderr


def test_exit_code_is_the_commands() -> None:
    assert asked("bash", "-c", "exit 7").returncode == 7


@pytest.mark.parametrize("every", [2, 3])
def test_every_nth_driver_call_fails(every: int, tmp_path: Path) -> None:
    code = COUNT.format(checks=str(HERE / "checks"))
    done = run(["--fail-every", str(every)], [sys.executable, "-c", code], tmp_path / "report")
    results = json.loads(done.output)
    assert results == [999 if n % every == 0 else 0 for n in range(1, 9)], (results, done.errors)


def test_one_function_fails_so_often(tmp_path: Path) -> None:
    faults = {"CUDA_SIM_FAIL": "cuMemPrefetchAsync_v2", "CUDA_SIM_FAIL_AFTER": "2", "CUDA_SIM_FAIL_TIMES": "3"}
    code = USE.format(checks=str(HERE / "checks"))
    done = run([], [sys.executable, "-c", code], tmp_path / "report", environment=faults | {"CUDA_SIM_FAIL_CODE": "46"})
    assert json.loads(done.output) == [0, 0, 46, 46, 46, 0, 0, 0]
    assert done.reports[0]["calls"]["cuMemPrefetchAsync_v2"] == 8 and done.violations() == []
    assert done.reports[0]["left"]["driver"]["managed_bytes"] == 0


def test_pages_of_four_kilobytes(tmp_path: Path) -> None:
    code = USE.format(checks=str(HERE / "checks")).replace("PAGE", "4096")
    small = run(["--page-kb", "4"], [sys.executable, "-c", code], tmp_path / "report")
    assert json.loads(small.output) == [0] * 8
    half = code.replace("prefetch(block, 4096", "prefetch(block + 4096, 4096").replace("managed(4096)", "managed(8192)")
    large = run(["--page-kb", "64"], [sys.executable, "-c", half], tmp_path / "report")
    assert json.loads(large.output) == [1] * 8


def test_report_has_a_line_per_process(tmp_path: Path) -> None:
    one = USE.format(checks=str(HERE / "checks"))
    many = (
        f"import subprocess, sys\nfor _ in range(2): subprocess.run([sys.executable, '-c', {one!r}], check=True)\n{one}"
    )
    exits = many + "\nimport os; os._exit(0)"
    done = run([], [sys.executable, "-c", exits], tmp_path / "report")
    assert len(done.reports) == 3 == len({report["pid"] for report in done.reports}), done.errors
    assert run([], ["bash", "-c", "true"], tmp_path / "report").reports == []


def test_nvidia_smi_answers_what_is_asked() -> None:
    listed = asked("--devices", "2", "nvidia-smi", "-L").stdout.splitlines()
    assert [line.split(" (")[0] for line in listed] == ["GPU 0: Simulated 0", "GPU 1: Simulated 1"]
    memory = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    assert asked("--devices", "2", "--hbm-mb", "96", *memory).stdout.split() == ["96", "96"]
    fields = "utilization.gpu,memory.used,memory.total,temperature.gpu,fan.speed,power.draw"
    row = asked("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits").stdout.strip().split(", ")
    assert len(row) == 6 and row[2] == "8192"
    wrong = asked("nvidia-smi", "--query-gpu=wings", "--format=csv")
    assert wrong.returncode and "wings" in wrong.stderr and not wrong.stdout


def test_nvml_numbers_devices_its_own_way(tmp_path: Path) -> None:
    code = """
import json, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
devices = [
    (pynvml.nvmlDeviceGetName(h), pynvml.nvmlDeviceGetUUID(h), pynvml.nvmlDeviceGetMemoryInfo(h).total) for h in handles
]
from cuda.bindings import driver
driver.cuInit(0)
count = driver.cuDeviceGetCount()[1]
print(json.dumps([devices, ["".join(f"{b:02x}" for b in driver.cuDeviceGetUuid(n)[1].bytes) for n in range(count)]]))
"""
    first, second = "2,0", "GPU-57"
    for visible, expected in ((first, [2, 0]), (second, [0])):
        done = run(
            ["--devices", "3", "--hbm-mb", "7"], [sys.executable, "-c", code], tmp_path / "report",
            environment={"CUDA_VISIBLE_DEVICES": visible},
        )  # fmt: skip
        devices, of_cuda = json.loads(done.output)
        assert [name for name, *_ in devices] == ["Simulated 0", "Simulated 1", "Simulated 2"] and devices[0][
            2
        ] == 7 << 20
        plain = [uuid.removeprefix("GPU-").replace("-", "") for _, uuid, _ in devices]
        assert len(set(plain)) == 3 and of_cuda == [plain[index] for index in expected]


def test_two_ranks_with_gloo(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = run(
        ["--devices", "2"], [*launch, str(HERE / "checks/ranks.py")], tmp_path / "report",
        environment={"CUDA_SIM_BACKEND": "gloo", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.code == 0 and "RIGHT 0" in done.output and "RIGHT 1" in done.output, done.errors[-3000:]
    used = [report for report in done.reports if report.get("copies", {}).get("host_to_device", {}).get("count")]
    peaks = sorted([bool(peak) for peak in report["device_bytes_peak"]] for report in used)
    assert peaks == [[False, True], [True, False]], "each rank uses its own device only"
    assert done.violations() == [] and all(report["unhandled_launches"] == 0 for report in used)


def test_existing_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the machine has its own')")
    done = run(
        [], [sys.executable, "-c", "print('then')"], tmp_path / "report", environment={"PYTHONPATH": str(tmp_path)}
    )
    assert done.output.split("\n")[:2] == ["the machine has its own", "then"]


def test_torch_without_cuda_is_one_error(tmp_path: Path) -> None:
    """No such build can be had here; what the check reads of one is its version."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from . import version\n__version__ = '9.9+cpu'\n")
    (package / "version.py").write_text("cuda = None\n")
    done = run(
        [], [sys.executable, "-c", "import torch"], tmp_path / "report", environment={"PYTHONPATH": str(tmp_path)}
    )
    assert done.code == 1 and "torch 9.9+cpu was built without CUDA" in done.errors.splitlines()[-1]


def copied(directory: Path) -> Path:
    """The simulated device in a tree of its own, so that it has to build itself."""
    there = directory / "tests" / "cuda_sim"
    shutil.copytree(HERE, there, ignore=shutil.ignore_patterns("__pycache__"))
    return there


def test_two_processes_build_at_once(tmp_path: Path) -> None:
    script = copied(tmp_path) / "build.sh"
    both = [subprocess.Popen([script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    directories = {Path(output.strip()) for output, _ in ended}
    assert len(directories) == 1 and sorted(p.name for p in directories.pop().iterdir()) == [
        "libcuda.so.1",
        "libnvidia-ml.so.1",
    ]
    assert len(list((tmp_path / "build/cuda_sim").iterdir())) == 1, "nothing half-built is left"


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = copied(tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "cat", "sha256sum", "cut", "basename", "realpath"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run([there / "build.sh"], env={"PATH": str(tools)}, capture_output=True, text=True)
    assert done.returncode == NO_COMPILER and "install the package gcc" in done.stderr
    monkeypatch.setattr("tests.cuda_sim.processes.HERE", there)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(CannotBuild, match="install the package gcc"):
        build.__wrapped__()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(AssertionError, match="install the package gcc"):
        build.__wrapped__()


def test_compiles_for_aarch64(tmp_path: Path) -> None:
    if shutil.which(CROSS_COMPILER) is None:
        pytest.skip(f"{CROSS_COMPILER} is missing; install the package gcc-aarch64-linux-gnu")
    done = subprocess.run([copied(tmp_path) / "build.sh", CROSS_COMPILER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    machine = (Path(done.stdout.strip()) / "libcuda.so.1").read_bytes()[18:20]
    assert int.from_bytes(machine, "little") == 183  # EM_AARCH64


def test_draws_like_the_cpu_where_asked(tmp_path: Path) -> None:
    code = """
import torch
drawn = []
for device in ("cpu", "cuda"):
    torch.manual_seed(3)
    drawn.append((torch.randn(50, device=device).cpu(), torch.rand(7, device=device).cpu()))
print(all(torch.equal(a, b) for a, b in zip(*drawn)))
"""
    same = run([], [sys.executable, "-c", code], tmp_path / "report", environment={"CUDA_SIM_RANDOM": "cpu"})
    assert (same.code, same.output) == (0, "True\n"), same.errors
