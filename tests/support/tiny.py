"""The lab's tiny run as the fork's tests use it: on a CPU, watched at every micro-batch, with upstream's full log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gh200_lab.place import ROOT
from gh200_lab.tiny import lab
from gh200_lab.tiny.images import make_images
from gh200_lab.tiny.launch import Launcher
from gh200_lab.tiny.run import Run

FORK = ROOT / "build" / "fork"
PRISTINE = ROOT / "build" / "pristine"
SHORT = {"max_train_steps": 6, "gradient_accumulation_steps": 1, "checkpoint_step_interval": 1000}
CPU = Launcher(gpu=False)
# As torchrun has it for several ranks. Losses depend on the number of threads: runs that are compared have the same.
VARIABLES = {"SIMPLETUNER_LOG_LEVEL": "DEBUG", "OMP_NUM_THREADS": "1"}


class Lab(lab.Lab):
    """Trains on the quick start's images, or on datasets of square ones: several buckets have no fixed order there."""

    def __init__(self, directory: Path, launcher: Launcher = CPU) -> None:
        super().__init__(directory, FORK)
        self.make()
        self.launcher = launcher
        self.datasets: list[str] = []
        self.entry_changes: dict[str, Any] = {}

    def add_dataset(self, name: str, images: int) -> None:
        assert not (self.directory / name).exists(), f"{name} is a directory of the lab's own"
        make_images(self.directory / name, images, [(64, 64)], first=100 * len(self.datasets))
        self.datasets.append(name)

    def watched(
        self,
        name: str,
        *,
        tree: Path = FORK,
        launcher: Launcher | None = None,
        cold: bool = False,
        resume: str = "",
        orders: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Run:
        """A run of plain upstream's config with `changes`; `resume` continues another run's newest checkpoint."""
        if resume:
            changes.setdefault("resume_from_checkpoint", "latest")
        config = self.config("off", **SHORT | changes)
        images, text = config["datasets"]
        images |= {"repeats": 0, **self.entry_changes}
        config["datasets"] = [*(self._entry(images, dataset) for dataset in self.datasets), text]
        if not self.datasets:
            config["datasets"].insert(0, images)
        return self.run(
            name,
            config,
            tree=tree,
            launcher=launcher or self.launcher,
            cold=cold,
            resume=resume,
            orders=orders or {},
            variables=VARIABLES | dict(variables or {}),
        )

    def _entry(self, like: dict[str, Any], name: str) -> dict[str, Any]:
        cache = str(self.directory / "cache" / "vae" / name)
        return like | {"id": name, "instance_data_dir": str(self.directory / name), "cache_dir_vae": cache}
