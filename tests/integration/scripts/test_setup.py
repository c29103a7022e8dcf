"""Set-up survives the machines people have: odd Pythons, old libraries, full disks, kills, no network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from setup_lab import BASE_PYTHON, REQUIREMENTS, ROOT, Checkout, make_checkout, program, write_wheel


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path)


def test_makes_the_tool_environment_once(checkout: Checkout) -> None:
    assert "Installed 2 packages" in checkout.setup("--tool-only")
    assert checkout.run("build/tool/bin/python", "import leaf, twig; print(twig.__version__)") == "2.0"
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        assert checkout.setup("--tool-only").split(maxsplit=1) == ["tool", f"ready: {checkout.root}/build/tool\n"]
        seconds.append(time.monotonic() - started)
    assert min(seconds) < 1


BREAKAGES = {
    "no interpreter": "rm build/tool/bin/python && ln -s /nowhere/python build/tool/bin/python",
    "a package is gone": "rm -r build/tool/lib/python3*/site-packages/twig",
    "half made": "rm build/tool/.gh200-stamp build/tool/lib/python3*/site-packages/leaf/__init__.py",
    "a file instead of a directory": "rm -r build/tool && touch build/tool",
    "another lock": "sed -i '/^leaf/,+1d' requirements/tool.lock",
}


@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=BREAKAGES.keys())
def test_a_broken_environment_is_made_anew(checkout: Checkout, breakage: str) -> None:
    checkout.setup("--tool-only")
    subprocess.run(breakage, shell=True, check=True, cwd=checkout.root)
    assert "Installed" in checkout.setup("--tool-only")
    assert checkout.run("build/tool/bin/python", "import twig; print(twig.__version__)") == "2.0"


def test_a_moved_checkout_is_made_anew(checkout: Checkout) -> None:
    checkout.setup("--tool-only")
    moved = Checkout(checkout.root.rename(checkout.root.with_name("elsewhere")), checkout.environment)
    assert "Installed" in moved.setup("--tool-only")


def test_a_killed_set_up_is_repaired_by_the_next(checkout: Checkout) -> None:
    first = subprocess.Popen(checkout.command(), env=checkout.environment, start_new_session=True)
    while first.poll() is None and not (checkout.root / ".venv/bin/python").exists():
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    checkout.setup()
    assert checkout.run(".venv/bin/python", "import leaf; print(leaf.__version__)") == "1.0"


def test_several_at_once_do_the_work_once(checkout: Checkout) -> None:
    options = {"env": checkout.environment, "stderr": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen(checkout.command("--tool-only"), **options) for _ in range(4)]
    output = [racer.communicate(timeout=60)[1] for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4, output
    assert sum("Installed 2 packages" in text for text in output) == 1


class Forgetful(SimpleHTTPRequestHandler):
    """Serves pages that are stale at once: uv has to ask again, unless it works offline."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=0")
        super().end_headers()


@pytest.fixture
def registry(checkout: Checkout) -> Iterator[ThreadingHTTPServer]:
    """A package registry on this machine that offers the invented wheels."""
    pages = checkout.root.parent / "registry"
    for wheel in (checkout.root.parent / "wheels").iterdir():
        page = pages / wheel.name.split("-")[0].replace("_", "-")
        page.mkdir(parents=True)
        shutil.copy(wheel, page)
        (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Forgetful, directory=str(pages)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.server_close()


def test_a_warm_cache_needs_no_network_and_a_cold_one_says_so(
    checkout: Checkout, registry: ThreadingHTTPServer
) -> None:
    index = {"UV_NO_INDEX": "", "UV_FIND_LINKS": "", "UV_DEFAULT_INDEX": f"http://127.0.0.1:{registry.server_port}/"}
    online = Checkout(checkout.root, checkout.environment | index | {"UV_HTTP_RETRIES": "0"})
    online.setup("--tool-only")
    registry.shutdown()
    registry.server_close()
    shutil.rmtree(checkout.root / "build/tool")
    online.setup("--tool-only")
    assert checkout.run("build/tool/bin/python", "import twig; print(twig.__version__)") == "2.0"
    shutil.rmtree(checkout.root / "build/tool")
    shutil.rmtree(checkout.environment["UV_CACHE_DIR"])
    assert "the package registry cannot be reached" in online.setup("--tool-only", code=4)
    assert not (checkout.root / "build/tool").exists()


def test_full_environment_sees_the_fork(checkout: Checkout) -> None:
    checkout.setup()
    (checkout.root / "build/fork/simpletuner").mkdir(parents=True)
    (checkout.root / "build/fork/simpletuner/__init__.py").touch()
    found = checkout.run(".venv/bin/python", "import simpletuner; print(simpletuner.__file__)")
    assert found == str(checkout.root / "build/fork/simpletuner/__init__.py")


def test_no_space_leaves_what_is_there_alone(checkout: Checkout, tmp_path: Path) -> None:
    checkout.setup()
    checkout.lock("fork", ("leaf", "1.1"))
    program(tmp_path / "small/df", "#!/bin/bash\nprintf 'name blocks used free\\ndisk 9 9 9\\n'\n")
    small = checkout.environment | {"PATH": f"{tmp_path / 'small'}:{checkout.environment['PATH']}"}
    assert "has 0 GB free" in Checkout(checkout.root, small).setup(code=4)
    assert checkout.run(".venv/bin/python", "import leaf; print(leaf.__version__)") == "1.0"


def test_a_read_only_checkout_is_rejected() -> None:
    # Root may write anywhere, so it has to become somebody else, in a directory that one may enter.
    nobody = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}
    with TemporaryDirectory() as directory:
        shutil.copytree(ROOT / "scripts", Path(directory) / "scripts")
        shutil.copytree(REQUIREMENTS, Path(directory) / "requirements")
        Path(directory).chmod(0o555)
        command = [f"{directory}/scripts/setup.sh", "--tool-only"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **nobody)
        Path(directory).chmod(0o755)
    assert done.returncode == 4 and f"cannot write in {directory}" in done.stderr


def test_an_activated_environment_can_replace_itself(checkout: Checkout) -> None:
    checkout.setup()
    checkout.lock("fork", ("leaf", "1.1"))
    checkout.setup("--python", str(checkout.root / ".venv/bin/python"))
    assert checkout.run(".venv/bin/python", "import leaf; print(leaf.__version__)") == "1.1"


def test_bad_arguments_are_rejected(checkout: Checkout) -> None:
    assert "unknown argument: --tool" in checkout.setup("--tool", code=4)
    assert "--python needs a path" in checkout.setup("--python", code=4)


def install(checkout: Checkout, python: Path, *packages: tuple[str, str]) -> None:
    wheels = checkout.root.parent / "wheels"
    lines = [write_wheel(wheels, *each).split()[0] for each in packages]
    command = ["uv", "pip", "install", "-q", "--no-deps", "--python", str(python), *lines]
    subprocess.run(command, check=True, env=checkout.environment)


def owner_with(checkout: Checkout, *packages: tuple[str, str]) -> Path:
    owner = checkout.root.parent / "owner"
    subprocess.run(["uv", "venv", "-q", "--python", BASE_PYTHON, owner], check=True, env=checkout.environment)
    install(checkout, owner / "bin/python", *packages)
    return owner


WHERE = "import torch, importlib.metadata as m; print(torch.__version__, torch.__file__, *sorted(d.name for d in m.distributions()))"


def test_a_vendors_torch_is_kept(checkout: Checkout) -> None:
    owner = owner_with(checkout, ("torch", "2.9.0a0+vendor"), ("torchvision", "0.24"))
    said = checkout.setup("--keep-torch", "--python", str(owner / "bin/python"))
    assert "kept torch 2.9.0a0+vendor" in said and "warning: torchaudio is missing" in said
    assert "without use_uvm keys" in said and "asks for torch 2.13.0 or newer, and this is 2.9.0a0+vendor" in said
    version, file, *names = checkout.run(".venv/bin/python", WHERE).split()
    assert version == "2.9.0a0+vendor" and Path(file).is_relative_to(owner)
    assert "nvidia-ml-py" in names and "nvidia-nvtx" not in names
    # A later run that does not say it again must not replace it.
    assert checkout.setup().startswith(".venv            ready:")


def test_a_torch_put_into_the_environment_is_kept(checkout: Checkout) -> None:
    checkout.setup()
    install(checkout, checkout.root / ".venv/bin/python", ("torch", "2.14.1+own"))
    checkout.lock("fork", ("leaf", "1.1"), ("torch", "2.14.1"))
    (checkout.root.parent / "wheels/leaf-1.1-py3-none-any.whl").write_bytes(b"cut off")
    assert "could not finish" in checkout.setup("--keep-torch", code=4)
    # Said once, even to a run that broke off, it holds for the next.
    checkout.lock("fork", ("leaf", "1.2"), ("torch", "2.14.1"))
    checkout.setup()
    line = "import torch, leaf; print(torch.__version__, leaf.__version__)"
    assert checkout.run(".venv/bin/python", line) == "2.14.1+own 1.2"


def test_nothing_to_keep_is_said(checkout: Checkout) -> None:
    assert "there is no torch to keep" in checkout.setup("--keep-torch", code=4)


def test_shell_scripts_are_clean() -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("no shellcheck on this machine")
    scripts = [*(ROOT / "scripts").rglob("*.sh"), *ROOT.glob("*.sh")]
    done = subprocess.run([shellcheck, "-x", *scripts], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout
