"""A checkpoint that cannot be written whole is removed, and ends the run with one message instead of a traceback."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path
from typing import Any, NoReturn

from ..errors import GH200Error, stop
from ..overrides import Overrides, override

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
# torch and safetensors report a failed write in words of their own.
_IN_WORDS = re.compile(
    r"os error (28|122|27)|PytorchStreamWriter|inline_container|No space left|disk space", re.IGNORECASE
)


class CheckpointError(GH200Error):
    """A checkpoint could not be written."""


class Checkpoints(Overrides):
    """Saves of one Trainer."""

    upstream_class = "Trainer"
    feature = "a GH200 run"

    def __init__(self, trainer: Any = None) -> None:
        super().__init__()
        self.trainer = trainer
        self.saved: tuple[int, str] | None = None

    @override
    def checkpoint_state_save(self, output_dir: str, *args: Any, **kwargs: Any) -> Any:
        before = set(Path(output_dir).glob("checkpoint-*"))
        try:
            path = self.upstream.checkpoint_state_save(output_dir, *args, **kwargs)
        except Exception as error:
            if getattr(error, "errno", None) not in _NO_SPACE and not _IN_WORDS.search(str(error)):
                raise
            self._reject(Path(output_dir), before, error)
        self.saved = int(self.trainer.state["global_step"]), str(path)
        return path

    def _reject(self, output: Path, before: set[Path], error: Exception) -> NoReturn:
        step, whole = int(self.trainer.state["global_step"]), sorted(path.name for path in before)
        if self.trainer.accelerator.is_main_process:
            for path in set(output.glob("checkpoint-*")) - before:
                shutil.rmtree(path, ignore_errors=True)
        problem = CheckpointError(
            f"The checkpoint of step {step} could not be written; the part that was is removed.",
            where=f"output_dir {output}, {shutil.disk_usage(output).free >> 20} MB free",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix=f"free disk space and start again: {', '.join(whole) or 'no checkpoint'} is whole",
        )
        if getattr(self.trainer, "gh200_exit_on_error", False):
            stop(problem, 1)
        raise problem from None
