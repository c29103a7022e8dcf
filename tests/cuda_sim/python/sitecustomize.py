"""Loaded by every Python that tests/cuda_sim/run.sh starts; waits for torch, and gives its CUDA device kernels."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


class _ThenInstall(Loader):
    """Torch's own loader, followed by the kernels."""

    def __init__(self, wrapped: Loader) -> None:
        self.wrapped = wrapped

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.wrapped.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.wrapped.exec_module(module)
        from cuda_sim_torch import install

        install()


class _WaitForTorch(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenInstall(spec.loader)
        return spec


def _run_the_next_sitecustomize() -> None:
    """Python takes the first on the path, which is this one; the machine's own must not be lost."""
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


sys.meta_path.insert(0, _WaitForTorch())
_run_the_next_sitecustomize()
