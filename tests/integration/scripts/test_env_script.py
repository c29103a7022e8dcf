"""scripts/setup_gh200_env.sh: what it sets, keeps and leaves out, and that no caller's shell suffers from it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from setup_lab import BASE_PYTHON, ROOT, program

SCRIPT = ROOT / "scripts/setup_gh200_env.sh"
KEYS = "use_uvm:True,uvm_oversubscription_ratio:5.0,uvm_access_pattern:gpu_first"
DEFAULTS = {
    "SIMPLETUNER_GH200_ENABLE_UVM_HINTS": "1",
    "GH200_UVM_OVERSUBSCRIPTION_RATIO": "5.0",
    "GH200_UVM_ACCESS_PATTERN": "gpu_first",
    "ACCELERATE_MIXED_PRECISION": "bf16",
}
OURS = {*DEFAULTS, "PYTORCH_CUDA_ALLOC_CONF"}
SHELLS = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"]}
OPTIONS = {
    "bash": [
        "set -eu",
        "set -eu -o pipefail -o noclobber",
        "set -o posix",
        "shopt -s failglob; set -ef",
        "export SHELLOPTS; set -eu",
    ],
    "zsh": [
        "set -eu -o pipefail",
        "emulate sh",
        "emulate ksh",
        "setopt KSH_ARRAYS ERR_RETURN NO_CLOBBER NO_UNSET",
        "setopt WARN_CREATE_GLOBAL GLOB_SUBST SH_WORD_SPLIT",
    ],
}
PATCHED = """
__version__ = "2.9.0+gh200"
class _C:
    @staticmethod
    def _accelerator_setAllocatorSettings(text):
        keys = {part.partition(":")[0] for part in text.split(",")}
        unknown = keys - {"use_uvm", "uvm_oversubscription_ratio", "uvm_access_pattern"}
        if unknown:
            raise ValueError(f"Unrecognized key {min(unknown)!r}")
"""
STOCK = """
__version__ = "9.9"
class _C:
    @staticmethod
    def _accelerator_setAllocatorSettings(text):
        raise ValueError("Unrecognized key 'use_uvm' in CUDA allocator config.")
"""
TORCHES = {
    "no torch": (None, "it has no torch"),
    "stock torch": (STOCK, "its PyTorch 9.9 is a stock build and rejects these keys (Unrecognized key 'use_uvm'"),
    "torch that does not load": (
        "raise OSError('libcudart.so: cannot open')",
        "its torch does not load (OSError: libcudart",
    ),
    "torch that lacks a package": (
        "import no_such_package",
        "its torch does not load (No module named 'no_such_package')",
    ),
    "torch that ends the process": ("import os; os._exit(3)", "ended with exit code 3 before it could answer"),
    "torch that hangs": ("import time; time.sleep(600)", "did not answer within 2 s"),
    "torch that cannot be asked": ("", "cannot be asked whether it accepts these keys"),
}


class Lab:
    """A Python of its own, with the torch a test invents, first on PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = program(directory / "bin/python", f'#!/bin/bash\nexec "{BASE_PYTHON}" -S "$@"\n')
        program(directory / "bin/nvidia-smi", "#!/bin/sh\n")
        inherited = {name: value for name, value in os.environ.items() if name not in OURS}
        for name in ("GH200_PYTHON", "PYTORCH_ALLOC_CONF", "BASH_ENV", "ENV"):
            inherited.pop(name, None)
        self.environment = inherited | {
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(directory / "lib"),
        }
        self.environment |= {"GH200_PROBE_SECONDS": "30"}

    def torch(self, text: str) -> None:
        (self.directory / "lib/torch").mkdir(parents=True)
        (self.directory / "lib/torch/__init__.py").write_text(text)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self.environment | environment,
            cwd=ROOT,
            check=False,
            timeout=120,
        )

    def shell(self, name: str, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(name, *SHELLS[name], "-c", script, **environment)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture(params=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> Iterator[str]:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on this machine")
    yield request.param


def variables(text: str) -> dict[str, str]:
    """Ours, out of what `env` printed."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, _, value in pairs if name in OURS}


def test_env_script_as_the_operator_types_it(lab: Lab, shell: str) -> None:
    done = lab.shell(shell, "set -eu; source scripts/setup_gh200_env.sh; env")
    assert done.returncode == 0, done.stderr
    assert variables(done.stdout) == DEFAULTS
    for name, value in DEFAULTS.items():
        assert f"set       {name}={value}" in done.stderr
    assert "left out  PYTORCH_CUDA_ALLOC_CONF" in done.stderr


def test_env_script_gives_the_keys_to_a_build_that_knows_them(lab: Lab, shell: str) -> None:
    lab.torch(PATCHED)
    done = lab.shell(shell, "source scripts/setup_gh200_env.sh; env")
    assert variables(done.stdout) == DEFAULTS | {"PYTORCH_CUDA_ALLOC_CONF": KEYS}
    chosen = {"GH200_UVM_ACCESS_PATTERN": "balanced", "GH200_UVM_OVERSUBSCRIPTION_RATIO": "2"}
    done = lab.shell(shell, "source scripts/setup_gh200_env.sh; env", **chosen)
    expected = "use_uvm:True,uvm_oversubscription_ratio:2,uvm_access_pattern:balanced"
    assert variables(done.stdout)["PYTORCH_CUDA_ALLOC_CONF"] == expected


@pytest.mark.parametrize("build", TORCHES)
def test_env_script_leaves_the_keys_out_and_says_why(lab: Lab, build: str) -> None:
    text, reason = TORCHES[build]
    if text is not None:
        lab.torch(text)
    done = lab.run(str(SCRIPT), "--print", GH200_PROBE_SECONDS="2" if "hangs" in build else "30")
    assert done.returncode == 0
    assert "PYTORCH_CUDA_ALLOC_CONF" not in done.stdout
    assert "left out  PYTORCH_CUDA_ALLOC_CONF" in done.stderr and reason in done.stderr


def test_env_script_asks_the_python_it_is_given(lab: Lab) -> None:
    lab.torch(PATCHED)
    broken = lab.run(str(SCRIPT), "--print", GH200_PYTHON=str(lab.directory / "nowhere"))
    assert "nowhere is no program" in broken.stderr and "ALLOC" not in broken.stdout
    other = program(lab.directory / "other", f'#!/bin/bash\nexec "{BASE_PYTHON}" -I -S "$@"\n')
    assert f"{other}: it has no torch" in lab.run(str(SCRIPT), "--print", GH200_PYTHON=str(other)).stderr
    program(lab.python, "#!/bin/bash\nexit 127\n")
    shutil.copy(other, lab.python.parent / "python3")
    assert f"{lab.python.parent}/python3: it has no torch" in lab.run(str(SCRIPT), "--print").stderr
    program(lab.python.parent / "python3", "#!/bin/bash\nexit 127\n")
    assert "python3 does not run; name one with GH200_PYTHON" in lab.run(str(SCRIPT), "--print").stderr


def test_env_script_leaves_bf16_out_on_a_cpu(lab: Lab) -> None:
    program(lab.directory / "bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
    done = lab.run(str(SCRIPT), "--print")
    assert done.returncode == 0 and "MIXED_PRECISION" not in done.stdout and "no NVIDIA GPU" in done.stderr
    kept = lab.run(str(SCRIPT), "--print", ACCELERATE_MIXED_PRECISION="bf16")
    assert "export ACCELERATE_MIXED_PRECISION=bf16" in kept.stdout


def test_env_script_without_any_python(lab: Lab) -> None:
    tools = lab.directory / "tools"
    tools.mkdir()
    for name in ("bash", "env", "cat", "timeout"):
        (tools / name).symlink_to(shutil.which(name) or pytest.fail(f"{name} is missing"))
    done = lab.run(str(SCRIPT), "--print", PATH=str(tools))
    assert done.returncode == 0 and "there is no python on PATH" in done.stderr


def test_env_script_keeps_what_the_caller_has(lab: Lab, shell: str) -> None:
    lab.torch(PATCHED)
    own = {"GH200_UVM_ACCESS_PATTERN": "cpu_first", "ACCELERATE_MIXED_PRECISION": "no"}
    own |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    done = lab.shell(shell, "source scripts/setup_gh200_env.sh; gh200_env_deactivate; env", **own)
    assert variables(done.stdout) == own
    for name, value in own.items():
        assert f"kept      {name}={value}" in done.stderr
    other = lab.shell(shell, "source scripts/setup_gh200_env.sh; env", PYTORCH_ALLOC_CONF="expandable_segments:True")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in variables(other.stdout)
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True is set" in other.stderr


def test_env_script_warns_of_kept_keys_that_would_stop_the_run(lab: Lab) -> None:
    lab.torch(STOCK)
    done = lab.run(str(SCRIPT), "--print", PYTORCH_CUDA_ALLOC_CONF="use_uvm:True")
    assert (
        "careful: training would stop on it" in done.stderr
        and "export PYTORCH_CUDA_ALLOC_CONF=use_uvm:True" in done.stdout
    )


def test_env_script_exports_what_was_set_but_private(lab: Lab, shell: str) -> None:
    source = "GH200_UVM_ACCESS_PATTERN=cpu_first; source scripts/setup_gh200_env.sh"
    assert variables(lab.shell(shell, f"{source}; env").stdout)["GH200_UVM_ACCESS_PATTERN"] == "cpu_first"
    after = lab.shell(shell, f"{source}; gh200_env_deactivate; env; echo here=$GH200_UVM_ACCESS_PATTERN")
    assert not variables(after.stdout) and "here=cpu_first" in after.stdout


def test_env_script_twice_and_back(lab: Lab, shell: str) -> None:
    lab.torch(PATCHED)
    twice = "source scripts/setup_gh200_env.sh; source scripts/setup_gh200_env.sh"
    done = lab.shell(shell, f"set -eu; {twice}; env")
    assert variables(done.stdout) == DEFAULTS | {"PYTORCH_CUDA_ALLOC_CONF": KEYS}
    assert done.stderr.count(f"kept      PYTORCH_CUDA_ALLOC_CONF={KEYS}") == 1
    back = lab.shell(shell, f"set -eu; {twice}; gh200_env_deactivate; env")
    assert back.returncode == 0 and not variables(back.stdout), back.stderr
    changed = lab.shell(shell, f"{twice}; export GH200_UVM_ACCESS_PATTERN=balanced; {twice}; gh200_env_deactivate; env")
    assert variables(changed.stdout) == {"GH200_UVM_ACCESS_PATTERN": "balanced"}
    assert "left      GH200_UVM_ACCESS_PATTERN: it has changed since" in changed.stderr
    empty = lab.shell(shell, f"{twice}; gh200_env_deactivate; env", ACCELERATE_MIXED_PRECISION="")
    assert variables(empty.stdout) == {"ACCELERATE_MIXED_PRECISION": ""}


@pytest.mark.parametrize("number", range(5))
def test_env_script_under_any_options(lab: Lab, shell: str, number: int) -> None:
    """Options, functions and variables are the same before and after; only ours come and go."""
    options = OPTIONS[shell][number]
    listing = {
        "bash": "set +o; shopt; declare -F; compgen -v",
        "zsh": "emulate -L zsh; setopt; print -l ${(ok)functions} ${(ok)parameters}",
    }[shell]
    script = f"""{options}
    state() {{ {listing}; }}
    inside() {{ source scripts/setup_gh200_env.sh; }}
    state > "$DIRECTORY/before"
    inside; . scripts/setup_gh200_env.sh
    state > "$DIRECTORY/with"
    gh200_env_deactivate
    state > "$DIRECTORY/after"
    echo arrived"""
    done = lab.shell(shell, script, DIRECTORY=str(lab.directory))
    assert done.returncode == 0 and done.stdout == "arrived\n", done.stderr
    before, within, after = (
        set((lab.directory / name).read_text().split("\n")) for name in ("before", "with", "after")
    )
    noise = {"_", "BASH_LINENO", "FUNCNAME", "PIPESTATUS", "BASHPID"}
    assert after - noise == before - noise
    ours = {*DEFAULTS, "_gh200_env_state", "gh200_env_deactivate", "declare -f gh200_env_deactivate"}
    assert within - before - noise <= ours and len(within - before - noise) >= len(DEFAULTS) + 2
    assert "created globally" not in done.stderr


BAD = {
    "GH200_UVM_ACCESS_PATTERN": ["foo", "GPU_FIRST", "gpu_first,cpu_first"],
    "GH200_UVM_OVERSUBSCRIPTION_RATIO": ["0", "0.0e9", "-1", "five", "inf", "nan", "1e999", "1;touch x"],
    "SIMPLETUNER_GH200_ENABLE_UVM_HINTS": ["maybe", "2"],
    "GH200_PROBE_SECONDS": ["0", "soon"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_env_script_rejects_values_that_cannot_work(lab: Lab, name: str, value: str) -> None:
    done = lab.run(str(SCRIPT), "--print", **{name: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{name}='{value}' is not " in done.stderr and "fix:" in done.stderr


def test_env_script_rejects_without_ending_the_shell(lab: Lab, shell: str) -> None:
    bad = {"GH200_UVM_ACCESS_PATTERN": "foo", "GH200_UVM_OVERSUBSCRIPTION_RATIO": "0"}
    done = lab.shell(shell, "source scripts/setup_gh200_env.sh; echo status=$?; env", **bad)
    assert "status=2" in done.stdout and variables(done.stdout) == bad
    assert all(f"{name}='{value}'" in done.stderr for name, value in bad.items())
    strict = lab.shell(shell, "set -e; source scripts/setup_gh200_env.sh; echo survived", **bad)
    assert strict.returncode == 2 and "survived" not in strict.stdout


@pytest.mark.parametrize("value", ["2", "0.5", "1e1", ".5", "5.", " 3 "])
def test_env_script_takes_every_number_above_zero(lab: Lab, value: str) -> None:
    assert lab.run(str(SCRIPT), "--print", GH200_UVM_OVERSUBSCRIPTION_RATIO=value).returncode == 0


def test_env_script_prints_lines_that_any_shell_evaluates(lab: Lab, shell: str) -> None:
    lab.torch(PATCHED)
    odd = {"ACCELERATE_MIXED_PRECISION": "it's $HOME `id`"}
    done = lab.shell(shell, 'eval "$(scripts/setup_gh200_env.sh --print)"; env', **odd)
    assert variables(done.stdout) == DEFAULTS | {"PYTORCH_CUDA_ALLOC_CONF": KEYS} | odd
    executed = lab.run(str(SCRIPT), "--print")
    sourced = lab.shell(shell, "source scripts/setup_gh200_env.sh --print; env >&2")
    assert executed.stdout == sourced.stdout
    assert all(line.startswith("export ") for line in executed.stdout.splitlines())
    assert not variables(sourced.stderr)


def test_env_script_must_be_sourced(lab: Lab, shell: str) -> None:
    for command in ([str(SCRIPT)], [shell, str(SCRIPT)]):
        done = lab.run(*command)
        assert done.returncode == 2 and "source scripts/setup_gh200_env.sh" in done.stderr
    assert lab.run(str(SCRIPT), "--pritn").returncode == 2
    assert lab.run(str(SCRIPT), "--print", "more").returncode == 2
    assert "gh200_env_deactivate" in lab.run(str(SCRIPT), "--help").stdout
    assert lab.shell(shell, "source scripts/setup_gh200_env.sh --help").stdout.startswith("usage:")


def test_env_script_does_not_take_the_arguments_of_its_caller(lab: Lab, shell: str) -> None:
    """A file that is sourced without arguments sees those of the script around it."""
    caller = program(lab.directory / "caller", f'source "{SCRIPT}"\nenv\necho "$@"\n')
    done = lab.run(shell, *SHELLS[shell], str(caller), "--print", "me")
    assert variables(done.stdout) == DEFAULTS and done.stdout.endswith("--print me\n")


def test_env_script_survives_a_startup_file_that_sources_it(lab: Lab) -> None:
    startup = program(lab.directory / "startup", f'source "{SCRIPT}"\n')
    done = lab.run("bash", "-c", "env", BASH_ENV=str(startup))
    assert done.returncode == 0 and variables(done.stdout) == DEFAULTS
    assert "it has no torch" in done.stderr


def test_env_script_in_another_shell_says_so(lab: Lab) -> None:
    dash = shutil.which("dash")
    if dash is None:
        pytest.skip("no dash on this machine")
    done = lab.run(dash, "-c", ". scripts/setup_gh200_env.sh || echo alive")
    assert done.stdout == "alive\n" and "bash and zsh only" in done.stderr
