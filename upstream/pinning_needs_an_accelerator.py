"""Collate cannot fetch a latent on a machine without an accelerator."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from scene import CannotTry


def reproduce(directory: Path) -> str | None:
    """The fault in one sentence, or None."""
    from simpletuner.helpers.training.collate import fetch_latent
    from simpletuner.helpers.training.state_tracker import StateTracker

    if torch.accelerator.is_available():
        raise CannotTry("there is an accelerator")
    cache = SimpleNamespace(retrieve_from_cache=lambda path: torch.ones(4))
    StateTracker.data_backends = {"photos": {"vaecache": cache}}
    try:
        fetch_latent("photo.png", "photos")
    except RuntimeError as error:
        return f"a latent cannot be fetched: {str(error).splitlines()[0]}"
    return None
