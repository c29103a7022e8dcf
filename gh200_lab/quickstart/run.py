"""Trains the tiny model by the documented command in the built fork, watches it, and writes the report."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from ..place import ROOT
from .report_page import Run, read_log, write_page
from .tiny_dataset import make_dataset
from .tiny_model import make_model

FORK = ROOT if (ROOT / "simpletuner" / "train.py").is_file() else ROOT / "build" / "fork"
WORK = ROOT / "build" / "quickstart"
CONFIGS = {"on": "config/quickstart.json", "off": "config/quickstart_off.json"}


def main() -> int:
    options = _options()
    if not options.keep:
        shutil.rmtree(WORK / "output", ignore_errors=True)
        shutil.rmtree(WORK / "cache", ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    make_model(WORK / "model")
    make_dataset(WORK / "images")
    _reach_work_from_fork()
    log = WORK / "run.jsonl"
    log.unlink(missing_ok=True)
    command = _command(options)
    print(f"\nIn {os.path.relpath(FORK)}:\n  {' '.join(command)}\n", flush=True)
    started = time.monotonic()
    code = subprocess.run(command, cwd=FORK, env=_environment(log)).returncode
    if code:
        print(f"error: training ended with exit code {code}; its messages are above", file=sys.stderr)
        return code
    return _finish(command, time.monotonic() - started, log)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--features", choices=tuple(CONFIGS), default="on")
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


def _command(options: argparse.Namespace) -> list[str]:
    accelerate = "gh200" if _has_gpu() else "cpu"
    command = ["accelerate", "launch", "--config_file", f"config/accelerate_config_{accelerate}.yaml"]
    command += ["simpletuner/train.py", "--config", CONFIGS[options.features]]
    return command if options.steps is None else [*command, f"--max_train_steps={options.steps}"]


def _has_gpu() -> bool:
    """Asked of the driver's own tool: importing torch for it would cost more than all else before the launch."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        print("note: nvidia-smi does not answer; training on the CPU", file=sys.stderr)
        return False
    return done.returncode == 0 and "GPU" in done.stdout


def _environment(log: Path) -> dict[str, str]:
    own = {
        # Upstream's order of buckets hangs on it: two first runs in one folder would show two losses.
        "PYTHONHASHSEED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GH200_RUN_LOG": str(log),
    }
    # Inherited settings of another run would win over the config's file.
    foreign = ("CONFIG_BACKEND", "CONFIG_PATH", "CONFIG_TYPE", "ENV", "SIMPLETUNER_CONFIG_BACKEND", "SIMPLETUNER_ENV")
    return {name: value for name, value in os.environ.items() if name not in foreign} | own


def _reach_work_from_fork() -> None:
    """The configs name build/quickstart relative to the folder the command runs in."""
    seen = FORK / "build" / "quickstart"
    if seen.resolve() != WORK.resolve():
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.unlink(missing_ok=True)
        seen.symlink_to(os.path.relpath(WORK, seen.parent))


def _finish(command: list[str], seconds: float, log: Path) -> int:
    weights = WORK / "output" / "pytorch_lora_weights.safetensors"
    steps, end = read_log(log) if log.is_file() else ([], {})
    if not steps or not weights.is_file():
        print(
            "error: training said it was done, but left no steps or no weights\n"
            f"  where: {log}, {weights}\n  fix: read the messages above; run again without --keep",
            file=sys.stderr,
        )
        return 1
    run = Run(steps, end, " ".join(command), seconds, _machine(), os.path.relpath(weights))
    page = write_page(run, WORK / "report.html")
    samples = sum(step["effective_batch_size"] for step in steps)
    print(
        f"\n{len(steps)} steps, {samples} samples, loss {steps[0]['loss']:.4f} -> {steps[-1]['loss']:.4f}, {seconds:.0f} s"
    )
    for name, reason in (end.get("runtime") or {}).get("unavailable", {}).items():
        print(f"not possible on this machine: {name}: {reason}")
    print(f"weights  {os.path.relpath(weights)}\nreport   {os.path.relpath(page)}")
    return 0


def _machine() -> dict[str, str]:
    import accelerate
    import diffusers
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    return {
        "device": f"{device} ({platform.machine()})",
        "Python": platform.python_version(),
        "PyTorch": torch.__version__,
        "Accelerate": accelerate.__version__,
        "diffusers": diffusers.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
