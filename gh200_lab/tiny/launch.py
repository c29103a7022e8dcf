"""How a training run is started: the documented command, plain Python, several ranks, or behind another command."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from ..machine import gpus
from ..place import environment

DRIVE = Path(__file__).with_name("drive.py")


@dataclass(frozen=True)
class Launcher:
    """`documented` is Accelerate's launcher with `--config`, as in the fork's guide. Otherwise upstream's own variables
    name the config, which both trees know. Several ranks are started by torchrun, or by Accelerate where that is asked for.
    `prefix` is a command that runs another one, such as one that lends a GPU.
    """

    documented: bool = False
    ranks: int = 1
    by_accelerate: bool = False
    gpu: bool = field(default_factory=lambda: bool(gpus()))
    prefix: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.documented and self.ranks > 1:
            raise ValueError("the documented command has one rank: its config file says how many there are")

    def command(self, tree: Path, config: Path, *arguments: str, watched: bool = False) -> list[str]:
        """The command line of a training."""
        script = [str(DRIVE)] * watched + [str(tree / "simpletuner" / "train.py")]
        named = ["--config", str(config)] if self.documented else []
        return [*self.prefix, *self._launch(tree), *script, *named, *arguments]

    def environment(self, tree: Path, config: Path, **more: str) -> dict[str, str]:
        """Its environment."""
        named = {} if self.documented else {"CONFIG_BACKEND": "json", "CONFIG_PATH": str(config)}
        # What Accelerate's launcher sets for a CPU.
        cpu = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16"}
        return environment(tree, **named, **({} if self.gpu else cpu), **more)

    def _launch(self, tree: Path) -> list[str]:
        if self.documented:
            settings = tree / "config" / f"accelerate_config_{'gh200' if self.gpu else 'cpu'}.yaml"
            return ["accelerate", "launch", "--config_file", str(settings)]
        if self.ranks > 1 and self.by_accelerate:
            # What the variables say of a CPU holds for its ranks too; its own --cpu wants MPI for several.
            one_machine = ("--num_machines", "1", "--main_process_port", "0", "--mixed_precision", "bf16")
            ranks = ("--multi_gpu", "--num_processes", str(self.ranks))
            return ["accelerate", "launch", *ranks, *one_machine, "--dynamo_backend", "no"]
        if self.ranks > 1:
            return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={self.ranks}"]
        return [sys.executable]
