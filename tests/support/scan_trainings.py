"""Trainings on one directory of images, as the tests of a fast start need them: cold, killed, several at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_injection import VARIABLE
from preloaded import Preloaded
from tiny import SHORT, VARIABLES, Lab

from gh200_lab.tiny.images import make_images
from gh200_lab.tiny.lab import forget
from gh200_lab.tiny.launch import DRIVE
from gh200_lab.tiny.run import Run, weights

NAME = "many"
SIZES = [(64, 64), (128, 64), (64, 128), (192, 64), (100, 80), (80, 100), (90, 64), (64, 90)]
PER_SIZE = 13
COUNT = PER_SIZE * len(SIZES)
# Upstream's child processes draw other crops in each run; its one thread draws from the run's own numbers. A training
# gets the crop of each image though `crop` is off: another random crop would change every loss.
STEPS = {"max_train_steps": 4, "checkpoint_step_interval": 4, "enable_multiprocessing": False}
MORE_STEPS = STEPS | {"max_train_steps": 8}
MODES: dict[str, dict[str, Any]] = {
    "upstream": {"fast_start": False},
    "ours": {"fast_start": True},
}


@dataclass(frozen=True)
class Watched(Preloaded):
    def command(self, tree: Path, config: Path, *arguments: str, watched: bool = False) -> list[str]:
        command = super().command(tree, config, *arguments, watched=watched)
        driver = command.index(str(DRIVE))
        return [*command[:driver], str(Path(__file__).with_name("fault_injection.py")), *command[driver:]]


@dataclass(frozen=True)
class Started:
    run: Run

    def bits(self) -> tuple[list[str], list[str], dict[str, str]]:
        """Ranks write their losses as they come; each of them has the same weights after an update."""
        return sorted(self.run.micro_losses()), self.run.updates(), weights(self.run.output)


class Trainings:
    """Trainings on the images of one directory, with the caches beside them; the output directory is the lab's."""

    def __init__(self, lab: Lab, data: Path, server: str) -> None:
        self.lab, self.data, self.server = lab, data, server

    def start(
        self,
        name: str,
        mode: str,
        *,
        ranks: int = 1,
        resume: str = "",
        orders: dict[str, Any] | None = None,
        code: int | None = 0,
        **changes: Any,
    ) -> Started:
        if resume:
            changes.setdefault("resume_from_checkpoint", "latest")
        config = self.lab.config("off", **SHORT | STEPS | {"gh200_optimizations": MODES[mode]} | changes)
        images, text = config["datasets"]
        images |= {"id": NAME, "repeats": 0, "instance_data_dir": str(self.images)}
        images["cache_dir_vae"], text["cache_dir"] = str(self.data / "cache/vae"), str(self.data / "cache/text")
        run = self.lab.run(
            name,
            config,
            launcher=Watched(place=self.server, ranks=ranks),
            resume=resume,
            orders={},
            variables=VARIABLES | {VARIABLE: json.dumps(orders or {})},
        )
        assert code is None or run.code == code, run.text[-4000:]
        return Started(run)

    def cold(self, name: str, mode: str, *, keep_caches: bool = False, **how: Any) -> Started:
        """From nothing. Upstream's own scan may lose images (upstream/scan_loses_entries.md): then once more."""
        for _ in range(5 if mode == "upstream" else 1):
            for file in self.images.glob("aspect_ratio_*"):
                file.unlink()
            if not keep_caches:
                forget(self.data)
            started = self.start(name, mode, **{"code": None} | how)
            if started.run.code == 0 and self.in_buckets() == sorted(self.metadata()) == self.all_images():
                return started
        raise AssertionError(started.run.text[-4000:])

    @property
    def images(self) -> Path:
        # Not the lab's own directory of images.
        return self.data / "dataset"

    def files(self) -> dict[str, Any]:
        """What upstream keeps beside the images: buckets and metadata."""
        return {path.name: json.loads(path.read_text()) for path in sorted(self.images.glob("*.json"))}

    def all_images(self) -> list[str]:
        return sorted(map(str, self.images.rglob("*.png")))

    def named(self) -> list[str]:
        """Files that were scanned and are in no bucket."""
        [file] = self.images.glob("*.left_out.tsv")
        return [line.split("\t")[1] for line in file.read_text().splitlines()]

    def in_buckets(self) -> list[str]:
        buckets = self.files()[f"aspect_ratio_bucket_indices_{NAME}.json"]["aspect_ratio_bucket_indices"]
        return sorted(path for paths in buckets.values() for path in paths)

    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = self.files()[f"aspect_ratio_bucket_metadata_{NAME}.json"]
        return found


def made(directory: Path, server: str) -> Trainings:
    directory.mkdir(exist_ok=True)
    trainings = Trainings(Lab(directory), directory, server)
    for number, name in enumerate(("one", "other")):
        sizes = SIZES[number::2]
        make_images(trainings.images / name, PER_SIZE, sizes, first=200 * number)
    return trainings
