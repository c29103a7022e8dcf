"""What the overlay relies on: found where upstream has it, named where it has not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_lab import FAKE, edit, fake, patch

from gh200_rebase.patches.patchfile import Expect, load_patches
from gh200_rebase.proofs.interfaces import InterfaceResult, check_interfaces
from gh200_rebase.syntax.tree import DirectoryTree, MemoryTree

UPSTREAM = {
    "simpletuner/__init__.py": b'__version__ = "1"\n',
    "simpletuner/base.py": b"""
import os
try:
    from simpletuner.extra import Extra
except ImportError:
    Extra = None
if os.name:
    def conditional(): ...

LIMIT = 3

class Root:
    def deep(self, x): ...

class Directory(Root):
    kind = "local"
    def __init__(self, root, name=""):
        self.root = root
    def read(self, key, as_text=False): ...
    def write(self, *parts, **options): ...
    @classmethod
    def made(cls, text): ...
    @property
    def size(self): ...

def make(kind, *, root=None): ...
""",
    "simpletuner/names/inner.py": b"x = 1\n",
}


def failed(code: str) -> list[InterfaceResult]:
    overlay = MemoryTree({"simpletuner/gh200/__init__.py": b"", "simpletuner/gh200/ours.py": code.encode()})
    return [item for item in check_interfaces([], MemoryTree(UPSTREAM), overlay) if not item.ok]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_fake_upstream_has_all(version: str) -> None:
    results = check_interfaces(load_patches(FAKE / "patches"), fake(version), DirectoryTree(FAKE / "overlay"))
    assert [item for item in results if not item.ok] == []
    assert {"Loop.report", "Loop.settings", "RamDirectory.read"} <= {item.name for item in results}


@pytest.mark.parametrize(
    "code",
    [
        "from simpletuner.base import Directory, make, conditional, Extra, LIMIT, os",
        "import simpletuner.base\nsimpletuner.base.make(1)",
        "from simpletuner import base, names, __version__\nprint(base.__file__)",
        "from simpletuner.names import inner",
        "from ..base import Directory",
        "from .ours import anything\nanything = 1",
        "try:\n    from simpletuner.nowhere import x\nexcept ImportError:\n    x = None",
        "try:\n    import simpletuner.nowhere\nexcept (ValueError, ModuleNotFoundError):\n    pass",
        "import torch.nothing",
    ],
)
def test_imports_that_exist(code: str) -> None:
    assert failed(code) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("from simpletuner.base import nothing", "simpletuner.base has no nothing"),
        ("from simpletuner.nowhere import x", "there is no module simpletuner.nowhere"),
        ("import simpletuner.nowhere", "there is no module simpletuner.nowhere"),
        ("def f():\n    from simpletuner.base import nothing", "has no nothing"),
        ("from ..nowhere import x", "there is no module simpletuner.nowhere"),
        ("from . import absent", "simpletuner.gh200 has no absent"),
        ("try:\n    from simpletuner.nowhere import x\nexcept KeyError:\n    x = None", "no module"),
        ("if x:\n    from simpletuner.base import nothing", "has no nothing"),
        ("def broken(:", "cannot be read as Python"),
    ],
)
def test_imports_that_do_not_exist(code: str, reason: str) -> None:
    (item,) = failed(code)
    assert reason in item.detail
    assert item.where.startswith("simpletuner/gh200/ours.py")


CLASS = "from simpletuner.base import Directory\nclass Ours(Directory):\n    "


@pytest.mark.parametrize(
    "method",
    [
        "def read(self, key, as_text=False): ...",
        "def read(self, key, as_text=False, more=1): ...",
        "def read(self, *args, **kwargs): ...",
        "def read(self, key, **kwargs): ...",
        "def write(self, *parts, **options): ...",
        "def read(self, key, as_text=False): return super().read(key, as_text=as_text)",
        "def deep(self, x): return super().deep(x)",
        "def __init__(self, other): super().__init__(other, name='x')",
        "def new(self): return super().__repr__()",
        "@classmethod\n    def made(cls, text): ...",
    ],
)
def test_overrides_that_fit(method: str) -> None:
    assert failed(CLASS + method) == []


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("def read(self, key): ...", "does not accept as_text"),
        ("def read(self, as_text, key): ...", "at another position"),
        ("def read(self, key, as_text, must): ...", "asks for must"),
        ("def write(self, *parts): ...", "further keyword arguments"),
        ("def deep(self): ...", "does not accept x"),
        ("def new(self): super().absent()", "no base class has absent"),
        ("def new(self): super().deep()", "lacks an argument for x"),
        ("def __init__(self): super().__init__()", "lacks an argument for root"),
    ],
)
def test_overrides_that_do_not_fit(method: str, reason: str) -> None:
    (item,) = failed(CLASS + method)
    assert reason in item.detail


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("make(1)", ""),
        ("make(1, root=2)", ""),
        ("make(*things)", ""),
        ("Directory('x').read('k', whatever=1)", ""),
        ("Directory.made('x')", ""),
        ("Directory.kind", ""),
        ("make()", "lacks an argument for kind"),
        ("make(1, 2)", "takes 1 positional"),
        ("make(1, rot=2)", "has no parameter rot"),
        ("Directory()", "lacks an argument for root"),
        ("Directory.made()", "lacks an argument for text"),
        ("Directory.absent()", "absent does not exist"),
    ],
)
def test_calls_of_imported_names(call: str, reason: str) -> None:
    found = failed(f"from simpletuner.base import Directory, make\n{call}\n")
    assert bool(found) == bool(reason)
    assert all(reason in item.detail for item in found)


def test_shadowed_names_are_not_judged() -> None:
    assert failed("from simpletuner.base import make\ndef f(make): make()\n") == []


def test_names_that_the_patches_add_exist() -> None:
    overlay = MemoryTree(
        {
            "simpletuner/gh200/__init__.py": b"",
            "simpletuner/gh200/hooks.py": b"class Hooks:\n    @classmethod\n    def extra(cls): ...\n",
            "simpletuner/gh200/user.py": b"from simpletuner.base import Root\nRoot.extra()\n",
        }
    )
    edits = (
        edit("import", "from simpletuner.gh200.hooks import Hooks", file="simpletuner/base.py", id="import"),
        edit("base", "Hooks", scope="Root", file="simpletuner/base.py", id="base"),
    )
    tree = MemoryTree(UPSTREAM)
    assert all(item.ok for item in check_interfaces([patch(*edits)], tree, overlay))
    assert not all(item.ok for item in check_interfaces([], tree, overlay))


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("Directory", (), ""),
        ("Directory", ("root", "name"), ""),
        ("Directory.read", ("self", "key", "as_text"), ""),
        ("Directory.kind", (), ""),
        ("Directory.root", (), ""),
        ("LIMIT", (), ""),
        ("conditional", (), ""),
        ("make", ("root",), ""),
        ("Directory.write", ("anything",), ""),
        ("Directory.read", ("limit",), "Directory.read does not accept limit"),
        ("Directory.gone", (), "has no Directory.gone"),
        ("Gone.read", (), "has no Gone.read"),
    ],
)
def test_expectations(name: str, args: tuple[str, ...], reason: str) -> None:
    wanted = replace(patch(), expects=(Expect("simpletuner/base.py", name, args, "", "why"),))
    (item,) = check_interfaces([wanted], MemoryTree(UPSTREAM), MemoryTree({}))
    assert item.ok == (not reason)
    assert reason in item.detail


def test_expectations_of_a_missing_file() -> None:
    wanted = replace(patch(), expects=(Expect("simpletuner/gone.py", "x", (), "", ""),))
    (item,) = check_interfaces([wanted], MemoryTree(UPSTREAM), MemoryTree({}))
    assert (item.ok, item.detail) == (False, "there is no such file")


def test_expectations_are_skipped_by_only_if() -> None:
    wanted = Expect("simpletuner/base.py", "Directory.gone", (), "Directory.gone", "")
    newer = Expect("simpletuner/gone.py", "x", (), "exists:simpletuner/gone.py", "")
    results = check_interfaces([replace(patch(), expects=(wanted, newer))], MemoryTree(UPSTREAM), MemoryTree({}))
    assert all(item.ok and item.detail.startswith("skipped") for item in results)


def test_overlay_files_stay_unexecuted(tmp_path: Path) -> None:
    (tmp_path / "simpletuner").mkdir()
    (tmp_path / "simpletuner/new.py").write_text("raise SystemExit('ran')\n")
    assert check_interfaces([], MemoryTree(UPSTREAM), DirectoryTree(tmp_path)) == ()
