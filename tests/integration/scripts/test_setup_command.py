"""What set-up leaves to be seen and used: few lines, the fork's `simpletuner`, and a cache wherever HOME is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from setup_lab import Checkout, find_uv, make_checkout, program
from terminal import in_terminal


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path)


@pytest.mark.parametrize("columns", [80, 120])
def test_set_up_in_a_terminal(checkout: Checkout, columns: int) -> None:
    first = in_terminal(checkout.command(), columns, checkout.root, checkout.environment)
    assert first.code == 0 and [line.split()[0] for line in first.lines] == ["Python", "packages", ".venv"]
    assert "Installed 4 packages" in first.lines[1]
    log = next((checkout.root / "build/logs").glob("setup-*.log"))
    assert " + nvidia-nvtx==13.0" in log.read_text()
    again = in_terminal(checkout.command(), columns, checkout.root, checkout.environment)
    assert len(again.lines) == 1 and "ready:" in again.lines[0]


def test_set_up_shows_what_went_wrong(checkout: Checkout) -> None:
    (checkout.root.parent / "wheels/twig-2.0-py3-none-any.whl").write_bytes(b"cut off")
    output = checkout.setup("--tool-only", code=4)
    assert "twig" in output and "error: could not finish" in output and "all of it: " in output


def test_verbose_set_up_shows_everything(checkout: Checkout) -> None:
    assert " + twig==2.0" in checkout.setup("--tool-only", "-v")


def simpletuner(checkout: Checkout, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(checkout.root / ".venv/bin/simpletuner"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=checkout.root, check=False)


def make_fork(checkout: Checkout) -> Path:
    fork = checkout.root / "build/fork"
    (fork / "simpletuner/gh200").mkdir(parents=True)
    (fork / "simpletuner/__init__.py").touch()
    (fork / "st_cli.py").write_text("import sys\ndef main():\n    print('the fork:', *sys.argv[1:])\n    return 5\n")
    (fork / "simpletuner/train.py").write_text("print('trained')\n")
    return fork


def test_simpletuner_is_the_forks(checkout: Checkout) -> None:
    checkout.setup()
    missing = simpletuner(checkout, "--help")
    assert missing.returncode == 2 and "there is no fork yet" in missing.stderr and "--skip-tests" in missing.stderr
    fork = make_fork(checkout)
    done = simpletuner(checkout, "examples", "list")
    assert (done.returncode, done.stdout) == (5, "the fork: examples list\n"), done.stderr
    # A release before st_cli has the same function elsewhere.
    (fork / "st_cli.py").rename(fork / "simpletuner/cli.py")
    assert simpletuner(checkout, "server").stdout == "the fork: server\n"
    # What breaks inside it is not taken for a fork that is missing.
    (fork / "simpletuner/cli.py").write_text("import nosuchmodule\n")
    assert "nosuchmodule" in simpletuner(checkout, "server").stderr


def test_an_environment_from_before_gets_the_command_too(checkout: Checkout) -> None:
    checkout.setup()
    command = checkout.root / ".venv/bin/simpletuner"
    command.unlink()
    assert checkout.setup().count("\n") == 1 and command.is_file()
    before = command.stat().st_ino
    checkout.setup()
    assert command.stat().st_ino == before


@pytest.mark.parametrize(
    "named", [["--config", "nope.json"], ["--config=nope.json"], ["--seed", "1", "--config", "~/nope.json"]]
)
def test_missing_config_is_named_before_anything_is_loaded(checkout: Checkout, named: list[str]) -> None:
    checkout.setup()
    fork = make_fork(checkout)
    python = str(checkout.root / ".venv/bin/python")
    # What Accelerate's launcher would load first.
    slow = checkout.root / "launch.py"
    slow.write_text("print('loaded')\n")
    starts = [
        [python, str(fork / "simpletuner/train.py")],
        [python, str(slow), "launch", str(fork / "simpletuner/train.py")],
    ]
    for start in [*starts, [str(checkout.root / ".venv/bin/simpletuner"), "train"]]:
        done = subprocess.run([*start, *named], capture_output=True, text=True, cwd=fork, check=False)
        assert (done.returncode, done.stdout) == (2, ""), start
        assert "cannot be read" in done.stderr and "nope.json, looked for in" in done.stderr
    (fork / "nope.json").write_text("{}")
    if "~/nope.json" not in named:
        assert subprocess.run([*starts[1], *named], capture_output=True, text=True, cwd=fork).stdout == "loaded\n"


def test_start_of_python_leaves_other_commands_alone(checkout: Checkout) -> None:
    checkout.setup()
    python = str(checkout.root / ".venv/bin/python")
    (checkout.root / "train.py").write_text("print('mine')\n")
    for words in (
        ["train.py", "--config", "nope"],
        ["-c", "print('mine')", "simpletuner", "train", "--config", "nope"],
    ):
        assert subprocess.run([python, *words], capture_output=True, text=True, cwd=checkout.root).stdout == "mine\n"


@pytest.mark.parametrize("home", [None, "/proc/nowhere", "/proc"], ids=["none", "missing", "read-only"])
def test_a_cache_is_found_whatever_home_is(checkout: Checkout, home: str | None) -> None:
    """/proc is read-only for everybody, root too; XDG_CACHE_HOME stands for the passwd entry uv asks without a HOME."""
    given = {name: value for name, value in checkout.environment.items() if name not in ("HOME", "UV_CACHE_DIR")}
    given |= {"HOME": home} if home else {"XDG_CACHE_HOME": "/proc/nowhere"}
    output = Checkout(checkout.root, given).setup()
    assert "build/uv-cache: " in output and "cannot be written to" in output and len(output.splitlines()) == 4
    assert (checkout.root / "build/uv-cache").is_dir()
    assert checkout.run(".venv/bin/python", "import leaf; print(leaf.__version__)") == "1.0"


def test_a_cache_that_was_asked_for_is_used_or_rejected(checkout: Checkout) -> None:
    given = checkout.environment | {"UV_CACHE_DIR": "/proc/nowhere"}
    output = Checkout(checkout.root, given).setup(code=4)
    assert "cannot write in /proc/nowhere" in output and "unset UV_CACHE_DIR" in output
    assert not (checkout.root / ".venv").exists()


def test_a_cache_with_files_of_another_user_is_named(checkout: Checkout, tmp_path: Path) -> None:
    """What uv says where a cache was copied or shared; root may open everything, so a fake uv replaces it."""
    words = "failed to open file cache/sdists-v9/.git: Permission denied (os error 13)"
    program(
        tmp_path / "bin/uv", f'#!/bin/bash\n[[ $1 != pip ]] || {{ echo "{words}" >&2; exit 2; }}\nexec {find_uv()} "$@"'
    )
    given = checkout.environment | {"PATH": f"{tmp_path / 'bin'}:{checkout.environment['PATH']}"}
    output = Checkout(checkout.root, given).setup(code=4)
    assert "Permission denied" in output and "name another with UV_CACHE_DIR" in output
