"""Short real training runs in the fork with all its features on together, and upstream's own beside them."""

from __future__ import annotations

import argparse
import ast
import functools
import math
import sys
from pathlib import Path

from .. import process
from ..place import Place, find_place
from ..scenario import Failed, Scenario, Skipped, main, parser
from ..tiny.lab import Lab
from ..tiny.run import Run
from .audio_run import audio
from .manual_requests import manual_requests
from .upstream_probes import ATTENTION_PROBE, run_probe

ABOUT = """\
Trains a tiny model in the fork with in-memory data, unified-memory caches and the accumulation ramp on together:
once per attention backend this machine has, once with a validation and a checkpoint asked for by hand during the
ramp, and on an audio dataset. With no option, all of it; each option selects its part, several add up.

exit codes: 0 nothing failed (skipped is no failure), 1 something failed, 2 there is no fork or no such name"""
SECTIONS = "simpletuner/simpletuner_sdk/server/services/field_registry/sections"
LIST = "attention_mechanisms"
MANUAL, AUDIO, BACKEND = "manual-requests", "audio-in-memory", "backend-"
# Upstream must always have these; were they missing, every run would be skipped and nothing shown.
ALWAYS = ("diffusers", "native")
# The ramp's quadratic shape from 1 to 4 over 12 micro-batches.
RAMP = {"initial_effective_batch_size": 1, "target_effective_batch_size": 4, "batch_rampup_steps": 12}
WINDOWS = [1, 1, 1, 1, 1, 2, 2, 3, 4]
FEATURES = (
    "in-memory datasets",
    "VAE cache in unified memory",
    "text cache in unified memory",
    "gradient accumulation ramp",
)


def backend(name: str, place: Place, options: argparse.Namespace) -> str:
    """One run with this attention backend and everything of ours on."""
    reasons, problem = unavailable(place)
    missing = reasons.get(name, "")
    if problem or (missing and name in ALWAYS):
        raise Failed(problem or f"upstream rejects a backend that every machine has: {missing}")
    if missing:
        raise Skipped(missing)
    with place.directory(f"{BACKEND}{name}", options.keep) as directory:
        lab = Lab(directory, place.fork)
        lab.make()
        config = lab.config(max_train_steps=len(WINDOWS), attention_mechanism=name)
        config["gh200_optimizations"] |= RAMP
        run = lab.train("all-on", config)
        check_features(run, WINDOWS)
        return f"{len(run.steps)} steps, windows {run.windows()}, loss {run.losses()[0]:.4f} -> {run.losses()[-1]:.4f}"


def check_features(run: Run, windows: list[int]) -> None:
    """Everything was on, the windows were the schedule's, the weights were written, and no loss went astray."""
    off = [feature for feature in FEATURES if feature not in run.features()]
    problems = [f"not on: {', '.join(off)}"] if off else []
    if run.windows() != windows:
        problems.append(f"windows {run.windows()} instead of the schedule's {windows}")
    if not all(map(math.isfinite, run.losses())):
        problems.append(f"losses {run.losses()}")
    if not (run.output / "pytorch_lora_weights.safetensors").is_file():
        problems.append("no weights were written")
    if problems:
        raise Failed("; ".join(problems))


@functools.cache
def unavailable(place: Place) -> tuple[dict[str, str], str]:
    """Why a backend cannot run here, by upstream's own word, from one process for all; or why that process failed."""
    try:
        seen = run_probe(place, place.fork, ATTENTION_PROBE)
    except Failed as problem:
        return {}, f"asking upstream for the attention backends failed: {problem}"
    return {name: one.get("unavailable", "") for name, one in seen.items()}, ""


def arguments(names: list[str]) -> argparse.Namespace:
    """The parsed command line."""
    made = parser(ABOUT)
    made.prog = "scripts/test_combined_features.sh"
    made.add_argument("--backend", metavar="NAME", action="append", default=[], help="with this attention backend only")
    made.add_argument(
        "--manual-validation", "--manual", dest="manual", action="store_true", help="validation and checkpoint by hand"
    )
    made.add_argument("--audio", action="store_true", help="an audio dataset in RAM")
    options = made.parse_args()
    # Upstream's option takes both spellings.
    spelled = {name.replace("_", "-"): name for name in names}
    options.backend = [spelled.get(name.replace("_", "-"), name) for name in options.backend]
    if names and (unknown := [name for name in options.backend if name not in names]):
        what = f"error: there is no attention backend named {', '.join(unknown)}"
        made.exit(2, f"{what}\n  fix: choose from: {', '.join(names)}\n")
    options.only += [f"{BACKEND}{name}" for name in options.backend]
    options.only += [name for name, wanted in ((MANUAL, options.manual), (AUDIO, options.audio)) if wanted]
    return options


def backend_names(tree: Path) -> list[str]:
    """As upstream's registry of options lists them; read, not imported, because that takes ten seconds."""
    for path in sorted((tree / SECTIONS).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [LIST]:
                return list(dict.fromkeys(ast.literal_eval(node.value)))
    raise LookupError(f"{tree / SECTIONS}: no list named {LIST}: upstream names its attention backends elsewhere now")


def known_backends() -> list[str]:
    """Attention backends that SimpleTuner accepts."""
    try:
        return backend_names(find_place().fork)
    except FileNotFoundError:
        # Without a fork there is nothing to list; `main` says so and how to build one.
        return []


if __name__ == "__main__":
    process.end_well_when_asked_to()
    listed = known_backends()
    chosen = arguments(listed)
    made = [Scenario(f"{BACKEND}{name}", "system", functools.partial(backend, name)) for name in listed]
    made += [Scenario(MANUAL, "system", manual_requests), Scenario(AUDIO, "system", audio)]
    sys.exit(main(made, chosen))
