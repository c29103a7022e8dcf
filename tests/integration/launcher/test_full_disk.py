"""A disk that is full during a checkpoint: the last whole checkpoint stays, the partial one goes, and one message says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from simpletuner.gh200.summary import last_checkpoint

ROOT = Path(__file__).resolve().parents[3]
# A real Accelerator writes a real state; the second save may write no more than 300 bytes into a file.
SAVES = """
import os, resource, sys
from pathlib import Path
from preemption_trainer import Trainer
from simpletuner.gh200.preemption.checkpoints import Checkpoints
trainer = Trainer(Path(sys.argv[1]))
trainer.gh200_exit_on_error = True
Checkpoints(trainer).install(trainer)
trainer.state["global_step"] = 3
trainer.checkpoint_state_save(sys.argv[1])
(Path(sys.argv[1]) / "checkpoint-3/training_state.json").write_text("{}")
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
trainer.state["global_step"] = 5
trainer.checkpoint_state_save(sys.argv[1])
"""


def test_a_full_disk_during_a_checkpoint_leaves_the_last_whole_one_and_one_message(tmp_path: Path) -> None:
    paths = f"{ROOT}:{ROOT / 'tests/support'}:{ROOT / 'build/fork'}"
    environment = {"PYTHONPATH": paths, "SIMPLETUNER_SKIP_TORCH": "1", "ACCELERATE_USE_CPU": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", SAVES, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    assert "step 5" in done.stderr and "checkpoint-3" in done.stderr and "fix: free disk space" in done.stderr
    assert "Traceback" not in done.stderr and str(tmp_path) in done.stderr
    found = last_checkpoint(tmp_path)
    assert found is not None and found[0] == 3 and not (tmp_path / "checkpoint-5").exists()
