"""Errors of the fork at run time: each says what was rejected, where, why, and what to do next."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


class GH200Error(Exception):
    """Base of everything the fork stops a run for."""

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(self.render())

    def render(self) -> str:
        """What, where, why, fix, a line each."""
        parts = [self.what]
        for label, text in (("where", self.where), ("why", self.why), ("fix", self.fix)):
            if text:
                parts.append(f"  {label}: " + text.replace("\n", "\n         "))
        return "\n".join(parts)


def printable(text: str) -> str:
    """For names of files, which need be neither text nor a single line: everything else in them is escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class ConfigFileError(GH200Error):
    """The file named by --config cannot be used."""


class RejectedConfig(GH200Error, ValueError):
    """SimpleTuner's parser or loaders do not accept the training config; a ValueError, as theirs is."""


def stop(error: GH200Error, code: int = 2) -> NoReturn:
    """End the process with this exit code and the error as the last lines of the output.

    SystemExit, because upstream catches every Exception around its loaders and then falls back to another config.
    """
    sys.stdout.flush()
    print(f"\n{error.render()}", file=sys.stderr, flush=True)
    if os.environ.get("SIMPLETUNER_WEBHOOK_HOST"):
        # A job of the web UI. Of what a failed job printed, the web UI shows the last line with this word.
        print("Error: " + " ".join(error.render().split()), file=sys.stderr, flush=True)
    _destroy_process_group()
    raise SystemExit(code) from error


def _destroy_process_group() -> None:
    """Torch often aborts at interpreter exit where a gloo process group is left over: exit code -6 instead of 2."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
