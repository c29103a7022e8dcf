"""Exercises of upstream's own code in both trees, each in a process of its own; what they see must be the same."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..place import Place, environment
from ..scenario import Failed, Skipped
from .upstream_trees import both_trees

SECONDS = 900
ATTENTION_PROBE = "probe_attention.py"
# A bf16 attention output against the same in float32; a 16 bit sample against its exact value.
ATTENTION_TOLERANCE, AUDIO_TOLERANCE = 0.05, 1e-4
_REASONS = {
    "needs a CUDA device": ("CUDA GPU", "No viable backend", "CUDA device", "backward on CPU"),
    "its kernel is not downloaded": ("offline mode", "local cache"),
    "its package is not installed": ("install", "import", "missing package", "FA3"),
}
_SIGNALS = {
    "no file": [[False, False]],
    "one validation": [[True, False], [False, False], [False, False]],
    "unreadable": [[False, False]] * 3,
    "the same again": [[False, False]] * 3,
    "two more and a checkpoint": [[True, True], [True, False], [False, False]],
}


def attention(place: Place) -> str:
    """Every backend upstream offers, selected by upstream's own code."""
    seen = _same_in_both(place, ATTENTION_PROBE)
    ran = {name: one for name, one in seen.items() if "unavailable" not in one}
    wrong = [
        f"{name} is off by {one['worst']:.3g}" for name, one in ran.items() if not one["worst"] <= ATTENTION_TOLERANCE
    ]
    if wrong:
        raise Failed(f"attention computes something else: {', '.join(wrong)}")
    if not ran:
        raise Skipped(f"no attention backend works here: {_unavailable(seen)}")
    named = ", ".join(name if one["active"] else f"{name} (PyTorch's own)" for name, one in ran.items())
    return f"bit-identical in both trees: {named}. Not here: {_unavailable(seen)}"


def manual_validation(place: Place) -> str:
    """Requests through the signal file arrive once each, in both trees."""
    seen = _same_in_both(place, "probe_manual_validation.py")
    wrong = [
        f"{name}: {seen.get(name)} instead of {wanted}" for name, wanted in _SIGNALS.items() if seen.get(name) != wanted
    ]
    if wrong:
        raise Failed(f"requests do not arrive as asked (validation, checkpoint): {'; '.join(wrong)}")
    return f"each request of the signal file arrives once in both trees ({', '.join(_SIGNALS)})"


def audio(place: Place) -> str:
    """An audio file made here comes out of upstream's loader as it went in."""
    seen = _same_in_both(place, "probe_audio.py")
    loaded = {name: one for name, one in seen.items() if "unavailable" not in one}
    wrong = [
        f"{name} is off by {one['worst']:.3g}" for name, one in loaded.items() if not one["worst"] <= AUDIO_TOLERANCE
    ]
    if wrong:
        raise Failed(f"audio comes out different from what was written: {', '.join(wrong)}")
    missing = "; ".join(f"{name}: {one['unavailable']}" for name, one in seen.items() if name not in loaded)
    if not loaded:
        raise Skipped(f"this machine loads no audio: {missing}")
    return f"the same samples in both trees from {', '.join(loaded)}" + f". Not here: {missing}" * bool(missing)


def _same_in_both(place: Place, probe: str) -> dict[str, Any]:
    """What the probe sees; Failed when the trees differ, Skipped when plain upstream has nothing for it to see."""
    trees = both_trees(place)
    try:
        pristine = run_probe(place, trees.pristine, probe)
    except Failed as problem:
        raise Skipped(f"this upstream is not as the exercise expects it: {problem}") from problem
    fork = run_probe(place, trees.fork, probe)
    keys = [*pristine, *(key for key in fork if key not in pristine)]
    differ = [f"{key}: {pristine.get(key)} -> {fork.get(key)}" for key in keys if pristine.get(key) != fork.get(key)]
    if differ:
        raise Failed(f"the fork differs from the pristine tree: {'; '.join(differ)}")
    return fork


def run_probe(place: Place, tree: Path, probe: str) -> dict[str, Any]:
    """What the probe sees in this tree, from a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name(probe))]
    with tempfile.TemporaryDirectory(prefix="gh200-") as directory:
        answer = Path(directory) / "seen.json"
        try:
            done = subprocess.run(
                [*command, str(answer)],
                cwd=directory,
                env=environment(tree),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as problem:
            raise Failed(f"{probe} did not end within {SECONDS} s in {tree}") from problem
        if done.returncode or not answer.is_file():
            raise Failed(
                f"{probe} ended with exit code {done.returncode} in {tree}: {' '.join(done.stderr[-600:].split())}"
            )
        found = json.loads(answer.read_text(encoding="utf-8").replace(directory, "."))
    if not Path(found["from"]).resolve().is_relative_to(tree):
        raise Failed(f"{probe} was to import the simpletuner of {tree}, and got {found['from']}")
    return dict(found["seen"])


def _unavailable(seen: dict[str, Any]) -> str:
    """Names by reason, in few words where the reason is a usual one."""
    groups: dict[str, list[str]] = {}
    for name, one in seen.items():
        if reason := one.get("unavailable"):
            usual = (short for short, signs in _REASONS.items() if any(sign in reason for sign in signs))
            groups.setdefault(next(usual, reason), []).append(name)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in groups.items()) or "none"
