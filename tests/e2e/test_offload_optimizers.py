"""Which of SimpleTuner's optimizers may be stepped bucket by bucket: every one is stepped both ways, and bits compared."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gh200_lab.place import ROOT
from simpletuner.gh200.offload.optimizers import STREAMABLE

pytestmark = pytest.mark.system

FORK = ROOT / "build" / "fork"
# In the fork's own process: upstream's list, whatever of it this environment can construct.
COMPARE = """
import json, logging, sys, warnings
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
import torch
from hypothesis import given, settings, strategies as st
from simpletuner.gh200.offload.buckets import buckets, only
from simpletuner.gh200.offload.optimizers import class_path
from simpletuner.helpers.training.optimizer_param import optimizer_choices

SHAPES = [(8, 16), (16,), (4, 3, 3, 3), (64, 8), (5, 7), (64, 64)]

def stepped(name, dtype, seed, absent, limit):
    torch.manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    choice = optimizer_choices[name]
    given = {key: value for key, value in choice["default_settings"].items() if key not in ("lr", "params")}
    groups = [{"params": parameters[:4]}, {"params": parameters[4:], "weight_decay": 0.0}]
    optimizer = choice["class"](groups, lr=1e-3, **given)
    if choice.get("is_schedulefree"):
        optimizer.train()
    for step in range(3):
        for number, parameter in enumerate(parameters):
            missing = (step, number) in absent
            parameter.grad = None if missing else torch.randn(parameter.shape).to(dtype)
        if limit:
            for bucket in list(buckets(optimizer.param_groups, lambda p: 8 * p.numel(), limit)):
                with only(optimizer, bucket):
                    optimizer.step()
        else:
            optimizer.step()
    return optimizer, [flat(parameters), flat([optimizer.state[p] for p in parameters]),
                       flat([{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups])]

def flat(value):
    if hasattr(value, "__tensor_flatten__"):
        return [flat(getattr(value, name)) for name in value.__tensor_flatten__()[0]]
    if isinstance(value, torch.Tensor):
        return value.detach().reshape(-1).contiguous().view(torch.uint8).tolist()
    if isinstance(value, dict):
        return {str(key): flat(inner) for key, inner in value.items()}
    return [flat(inner) for inner in value] if isinstance(value, (list, tuple)) else repr(value)

def plain(optimizer):
    values = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return all(type(value) is torch.Tensor for value in values)

found = {}
CASES = [(0, {(1, 2), (0, 5)}, 2000), (1, set(), 1), (2, {(2, 0), (2, 1)}, 40000)]
for name in optimizer_choices:
    if name.startswith("ao-"):  # quantized state, and a compiler's minutes to see it
        continue
    for dtype in (torch.bfloat16, torch.float32):
        try:
            stepped(name, dtype, 0, (), 0)
        except Exception as error:
            found.setdefault(name, f"cannot be constructed or stepped here: {type(error).__name__}: {error}"[:150])
            continue
        same = True
        for seed, absent, limit in CASES:
            whole, cut = (stepped(name, dtype, seed, absent, size) for size in (0, limit))
            same = same and whole[1] == cut[1] and plain(whole[0])
        if same and name in sys.argv[1:]:
            @settings(max_examples=8, deadline=None, derandomize=True, database=None)
            @given(st.integers(0, 99), st.sets(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=4), st.integers(1, 6000))
            def compare(seed, absent, limit):
                assert stepped(name, dtype, seed, absent, 0)[1] == stepped(name, dtype, seed, absent, limit)[1]
            try:
                compare()
            except AssertionError:
                same = False
        where = class_path(whole[0])
        found[name] = where if same and found.get(name, where) is not False else False
print("FOUND " + json.dumps(found))
"""


@pytest.mark.timeout(900)
def test_the_streamable_optimizers_are_those_that_keep_their_bits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, *STREAMABLE],
        capture_output=True,
        text=True,
        cwd=FORK,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(FORK), "OMP_NUM_THREADS": "1", "HOME": "/tmp"},
        timeout=880,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), None)
    assert line is not None, done.stderr[-2000:]
    found = json.loads(line.removeprefix("FOUND "))
    keep = {name: where for name, where in found.items() if where and not where.startswith("cannot")}
    assert {name: keep.get(name) for name in STREAMABLE} == STREAMABLE
    assert not any(found[name] for name in ("optimi-adamw", "optimi-stableadamw")), "the comparison sees a difference"
