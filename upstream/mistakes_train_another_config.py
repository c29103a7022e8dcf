"""A mistake in a config makes the trainer load another config, and train that."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def reproduce(directory: Path) -> str | None:
    """The fault in one sentence, or None."""
    from simpletuner.helpers.training import trainer

    given: list[Any] = []

    def load_config(args: Any, exit_on_error: bool = False) -> Any:
        given.append(args)
        raise ValueError("a mistake in the config" if args else "the config in config/ was looked for")

    usual, trainer.load_config = trainer.load_config, load_config
    try:
        made = trainer.Trainer.__new__(trainer.Trainer)
        made.configure_webhook = lambda **_: None
        made.parse_arguments({"--learning_rate": "a mistake"})
    except (Exception, SystemExit):
        pass
    finally:
        trainer.load_config = usual
    return "after a config that cannot be parsed, the one in config/ is loaded" if None in given else None
