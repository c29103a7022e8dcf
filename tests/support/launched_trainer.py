"""Runs as the train.py of a root of its own: a rank that counts steps, saves as a checkpoint does, and obeys orders.

The launcher, Accelerate and the signals are the real ones; only the model is missing, and with it half a minute.
"""

import json
import os
import sys
import time
import zipfile
from pathlib import Path

from gh200_lab.checkout import see_this_checkout

see_this_checkout()
from simpletuner.gh200.preemption.launcher import watch_launcher  # noqa: E402
from simpletuner.gh200.preemption.marker import write_marker  # noqa: E402
from simpletuner.gh200.preemption.signals import EXIT_CODE, Signals  # noqa: E402

config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
output, total = Path(config["output_dir"]), config["max_train_steps"]
order = os.environ.get("RANK_ORDER", "")
watch_launcher()
signals = Signals()
if config["gh200_optimizations"]["checkpoint_on_signal"]:
    signals.listen()
    signals.training = True


def save(step: int) -> str:
    directory = output / f"checkpoint-{step}"
    directory.mkdir()
    with zipfile.ZipFile(directory / "random_states_0.pkl", "w") as archive:
        archive.writestr("states", "")
    (directory / "training_state.json").write_text("{}")
    return directory.name


output.mkdir(parents=True, exist_ok=True)
(output / "rank.pid").write_text(str(os.getpid()))
for step in range(1, total + 1):
    with open(os.environ["GH200_RUN_LOG"], "a") as log:
        log.write(json.dumps({"kind": "step", "step": step, "loss": 1.0 / step, "time": time.time()}) + "\n")
    print(f"[INFO] step {step}", flush=True)
    if order == "fail" and step == 3:
        raise RuntimeError("the loss is not a number")
    if order == "sample" and step == 2:
        (output / "validation_images").mkdir()
        (output / "validation_images/step_2.png").write_bytes(b"")
    while order == "wait" and step == 3 and not signals.asked_with:
        time.sleep(0.02)
    if signals.asked_with:
        write_marker(output, checkpoint=save(step), step=step, signal=signals.asked_with, rank=0)
        sys.exit(EXIT_CODE)
save(total)
(output / "pytorch_lora_weights.safetensors").write_bytes(b"")
(output / "README.md").write_text("a model card")
