"""Run in one tree: asks for validations and checkpoints through upstream's signal file. Writes JSON."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


class Registered(Exception):
    """As far as a start goes without a model: both triggers are in place."""


def ask(path: Path, moment: int, text: str) -> None:
    """Upstream looks at the file again when its date is newer."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (moment, moment))


def start(path: Path) -> Any:
    """A Trainer that upstream's own start-up has connected with the signal file."""
    from simpletuner.helpers.training.trainer import Trainer

    class Unconfigured(Trainer):  # type: ignore[misc]
        def __init__(self) -> None:
            self._manual_validation_consumer = self._manual_checkpoint_consumer = None

        def configure_webhook(self, *_: Any, **__: Any) -> None:
            raise Registered

    os.environ["SIMPLETUNER_ACCELERATE_SIGNAL_FILE"] = str(path)
    trainer = Unconfigured()
    try:
        import_module("simpletuner.train")._run_training(trainer)
    except Registered:
        return trainer
    raise RuntimeError("upstream's start-up went past the place where its triggers are registered")


def main() -> None:
    """Print the results as JSON."""
    import simpletuner

    directory = Path(sys.argv[1]).parent
    path = directory / "signal.json"
    path.unlink(missing_ok=True)
    trainer = start(path)

    def answers(times: int) -> list[list[bool]]:
        consume = (trainer._consume_manual_validation_request, trainer._consume_manual_checkpoint_request)
        return [[one() for one in consume] for _ in range(times)]

    seen = {"no file": answers(1)}
    requests = {
        "one validation": '{"manual_validation": 1}',
        "unreadable": "{",
        "the same again": '{"manual_validation": 1}',
        "two more and a checkpoint": '{"manual_validation": 3, "manual_checkpoint": 1}',
    }
    for moment, (name, text) in enumerate(requests.items(), 1_000_000_000):
        ask(path, moment, text)
        seen[name] = answers(3)
    Path(sys.argv[1]).write_text(json.dumps({"from": simpletuner.__file__, "seen": seen}), encoding="utf-8")


if __name__ == "__main__":
    main()
