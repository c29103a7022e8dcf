"""The quick start's tiny model, trained in the fork by the documented command, in a folder of the scenario's own."""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import process
from ..machine import gpus
from ..place import Place
from ..scenario import Failed

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = {"on": "quickstart.json", "off": "quickstart_off.json"}
MOVED = "build/quickstart"
LIMIT = 900.0
# Inherited settings of another run would win over the config's file.
FOREIGN = ("CONFIG_BACKEND", "CONFIG_PATH", "CONFIG_TYPE", "ENV", "SIMPLETUNER_CONFIG_BACKEND", "SIMPLETUNER_ENV")
MODEL_MAKER = """\
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from gh200_lab.quickstart.tiny_model import make_model

make_model(Path(sys.argv[2]))
"""
# Kernels of a GPU add in no fixed order.
GPU_TOLERANCE = 0.01
Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A training run that ended well: its optimizer steps and last words from the run log, and what it printed."""

    steps: list[Record]
    end: Record
    text: str
    output: Path
    seconds: float

    def losses(self) -> list[float]:
        return [step["loss"] for step in self.steps]

    def windows(self) -> list[int]:
        return [step["gradient_accumulation_steps"] for step in self.steps]


class TinyRuns:
    """A folder with a model and data. Its runs share absolute paths, so what they computed can be compared."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        self.folder = folder
        self.signals = folder / "triggers.json"
        self.log = folder / "run.jsonl"

    def make(self, per_aspect: int = 3) -> None:
        make_pictures(self.folder / "images", per_aspect)
        shutil.copytree(_model(self.place), self.folder / "model")

    def config(self, features: str = "on", **changes: Any) -> Record:
        """The quick start's own config, moved here."""
        shipped = json.loads((self.place.fork / "config" / CONFIGS[features]).read_text(encoding="utf-8"))
        moved: Record = _moved(shipped, self.folder)
        if "data_backend_config" in shipped:
            listed = json.loads((self.place.fork / shipped["data_backend_config"]).read_text(encoding="utf-8"))
            moved["data_backend_config"] = str(self.folder / "datasets.json")
            Path(moved["data_backend_config"]).write_text(json.dumps(_moved(listed, self.folder)), encoding="utf-8")
        return moved | changes

    def train(
        self,
        config: Record,
        *,
        limit: float = LIMIT,
        while_training: Callable[[int], None] = lambda group: None,
        more: Mapping[str, str] | None = None,
        quick: bool = False,
    ) -> Run:
        """From nothing: caches and outputs of a run before are forgotten, because only cold runs can be compared.

        `quick` leaves out Accelerate's launcher on a CPU, where it only sets variables, and takes ten seconds for it.
        """
        written = self.folder / "config.json"
        written.write_text(json.dumps(config, indent=1), encoding="utf-8")
        self._forget()
        done = process.run(
            self._command(written, quick),
            cwd=self.folder,
            environment=self._environment() | dict(more or {}),
            log=self.folder / "printed.log",
            limit=limit,
            watch=while_training,
        )
        steps, end = read_log(self.log)
        if done.code:
            raise Failed(f"training ended with exit code {done.code} after {len(steps)} steps: {done.complaint()}")
        if len(steps) != config["max_train_steps"]:
            raise Failed(
                f"{config['max_train_steps']} steps were asked for, {len(steps)} were trained: {done.complaint()}"
            )
        return Run(steps, end, done.text, self.folder / "output", done.seconds)

    def steps_so_far(self) -> int:
        return len(read_log(self.log)[0])

    def _forget(self) -> None:
        for name in ("cache", "output"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in (*self.folder.glob("*/aspect_ratio_*"), self.log):
            path.unlink(missing_ok=True)
        self.signals.write_text("{}", encoding="utf-8")

    def _command(self, config: Path, quick: bool) -> list[str]:
        trainer = [str(self.place.fork / "simpletuner" / "train.py"), "--config", str(config)]
        if quick and not gpus():
            return [sys.executable, *trainer]
        launch = self.place.fork / "config" / f"accelerate_config_{'gh200' if gpus() else 'cpu'}.yaml"
        return ["accelerate", "launch", "--config_file", str(launch), *trainer]

    def _environment(self) -> dict[str, str]:
        own = self.place.environment(
            self.place.fork,
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            TOKENIZERS_PARALLELISM="false",
            PYTHONHASHSEED="0",
            **({} if gpus() else {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16"}),
            GH200_RUN_LOG=str(self.log),
            SIMPLETUNER_ACCELERATE_SIGNAL_FILE=str(self.signals),
        )
        return {name: value for name, value in own.items() if name not in FOREIGN}


@contextmanager
def work_folder(place: Place, name: str, keep: bool) -> Iterator[Path]:
    """A fresh folder below the place's work folder, removed at the end."""
    place.work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place.work))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def tiny_runs(place: Place, name: str, keep: bool) -> Iterator[TinyRuns]:
    with work_folder(place, name, keep) as folder:
        yield TinyRuns(place, folder)


@functools.cache
def _model(place: Place) -> Path:
    """One for all scenarios of a script, made in a process of its own: what it imports is slow, and talks."""
    place.work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="model-", dir=place.work))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    done = process.run(
        [sys.executable, "-c", MODEL_MAKER, str(ROOT), str(folder / "model")],
        cwd=folder,
        environment=os.environ,
        log=folder / "printed.log",
        limit=LIMIT,
    )
    if done.code:
        raise Failed(f"the tiny model could not be made: {done.complaint()}")
    return folder / "model"


def make_pictures(folder: Path, per_aspect: int = 3) -> None:
    """The quick start's captioned pictures."""
    from ..quickstart.tiny_dataset import make_dataset

    make_dataset(folder, per_aspect)


def differing_losses(one: Run, other: Run, first: int | None = None) -> list[int]:
    """Steps, counted from 1, whose losses differ: on a CPU in any bit, on a GPU beyond its tolerance."""
    pairs = zip(one.losses()[:first], other.losses()[:first], strict=True)
    tolerance = GPU_TOLERANCE if gpus() else 0.0
    return [step for step, pair in enumerate(pairs, 1) if not math.isclose(*pair, rel_tol=tolerance)]


def read_log(path: Path) -> tuple[list[Record], Record]:
    """Steps and end of a run log; a line that is still being written does not count."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    ends = [record for record in records if record["kind"] == "end"]
    return [record for record in records if record["kind"] == "step"], ends[-1] if ends else {}


def _moved(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: _moved(entry, folder) for key, entry in value.items()}
    if isinstance(value, list):
        return [_moved(entry, folder) for entry in value]
    return value.replace(MOVED, str(folder)) if isinstance(value, str) else value
