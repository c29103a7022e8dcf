"""A dataset that stays on disk because RAM would save nothing: files are read ahead, and dropped once they were read."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from ...memory.driver import CudaError
from ...memory.family import platform
from ...runtime import current
from .codecs import WORTH_IT, Codec
from .listing import SourceFile, open_regular
from .segment import estimated_ratio

AHEAD = 16  # files
WHY = "CPU and GPU share one memory pool, and a copy of these files would take as much of it as the page cache does"


def is_better(files: Sequence[SourceFile], codec: Codec | None) -> bool:
    """Whether the page cache holds the files as well as staging would: in one pool, where compression saves nothing."""
    run = current()
    device = run.hints.device if run is not None else None
    try:
        if device is None or not platform(device).one_pool:
            return False
    except CudaError:
        return False
    return codec is None or estimated_ratio(files, codec) >= WORTH_IT


class PageCacheWindow:
    """The files around the one that is read; of those behind it nothing is kept."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._places = {path: place for place, path in enumerate(paths)}
        self._ahead: set[str] = set()
        self._lock = threading.Lock()

    def passed(self, path: str) -> None:
        """After a read of a whole file."""
        place = self._places.get(path)
        if place is None:
            return
        with self._lock:
            coming = [other for other in self._paths[place + 1 : place + 1 + AHEAD] if other not in self._ahead]
            self._ahead.update(coming)
            self._ahead.discard(path)
        _advise(path, os.POSIX_FADV_DONTNEED)
        for other in coming:
            _advise(other, os.POSIX_FADV_WILLNEED)


def _advise(path: str, advice: int) -> None:
    try:
        descriptor = open_regular(path)
    except OSError:
        return  # SimpleTuner reports it where it reads the file
    try:
        os.posix_fadvise(descriptor, 0, 0, advice)
    finally:
        os.close(descriptor)
