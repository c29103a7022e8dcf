"""The in-memory dataset backend: upstream's local backend whose reads come from RAM, and whose writes go to disk."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from simpletuner.helpers.data_backend import local as upstream
from simpletuner.helpers.training import audio_file_extensions, image_file_extensions, video_file_extensions

from ..errors import GH200Error
from ..settings.dataset_file import in_memory_options
from .arena import Handle, SharedArena, attach
from .listing import Kinds, forget_changed
from .rendezvous import Run, meeting_point, share
from .sites import REPRESENTATION_KEY
from .staged import staged
from .staging import report_files, stage

logger = logging.getLogger("gh200.in_memory")

_OPENED_BY_PATH = frozenset(audio_file_extensions) | frozenset(video_file_extensions)
_KINDS = Kinds(images=frozenset(image_file_extensions) - _OPENED_BY_PATH, by_path=_OPENED_BY_PATH)


class GH200InMemoryBackend(upstream.LocalDataBackend):  # type: ignore[misc]
    """Cannot be told from `local` by what it returns or raises; what is not in RAM is read by upstream's own code."""

    def __init__(
        self,
        accelerator: Any,
        id: str,
        compress_cache: bool = False,
        instance_data_dir: str | os.PathLike[str] | None = None,
        options: object = None,
    ) -> None:
        super().__init__(accelerator=accelerator, id=id, compress_cache=compress_cache)
        self.options = in_memory_options(options)
        self._arena: SharedArena | None = None
        if instance_data_dir is not None:
            self._arena = self._staged_or_attached(os.path.abspath(instance_data_dir))
        self._join_the_run()

    def _join_the_run(self) -> None:
        if (known := staged()) is not None:
            known.backends.add(self)

    def _staged_or_attached(self, root: str) -> SharedArena | None:
        run = Run.from_environment()

        def fill() -> SharedArena:
            return stage(self.id, root, self.options, _KINDS)

        if run is None:
            return fill()
        return share(meeting_point(run, self.id, root), fill, self._report_changes, run.patience)

    def get_instance_representation(self) -> dict[str, Any]:
        representation: dict[str, Any] = super().get_instance_representation()
        if self._arena is not None:
            representation[REPRESENTATION_KEY] = self._arena.handle().as_dict()
        return representation

    @staticmethod
    def from_instance_representation(representation: dict[str, Any]) -> GH200InMemoryBackend:
        plain = upstream.LocalDataBackend.from_instance_representation(representation)
        rebuilt = GH200InMemoryBackend(plain.accelerator, plain.id, plain.compress_cache)
        if REPRESENTATION_KEY in representation:
            rebuilt._attach(representation[REPRESENTATION_KEY])
        return rebuilt

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_arena": None}
        return state | {REPRESENTATION_KEY: self._arena.handle().as_dict()} if self._arena is not None else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        handle = state.pop(REPRESENTATION_KEY, None)
        self.__dict__.update(state)
        self._join_the_run()
        if handle is not None:
            self._attach(handle)

    def _attach(self, handle: dict[str, Any]) -> None:
        """For a process that was handed the representation: the same memory, or the disk where that is not possible."""
        try:
            self._arena = attach(Handle.from_dict(handle))
            self._report_changes(self._arena)
        except (OSError, GH200Error) as error:
            logger.warning(
                "(id=%s) The dataset in RAM of process %s is not available here (%s): reading from disk.",
                self.id,
                handle["pid"],
                error,
            )

    def read(self, filepath: Any, as_byteIO: bool = False) -> Any:
        arena = self._arena
        number = None if arena is None else arena.find(_listed(filepath))
        if arena is None or number is None:
            return super().read(filepath, as_byteIO)
        data = arena.read(number)
        return BytesIO(data) if as_byteIO else data

    def view(self, filepath: str) -> memoryview | None:
        """The file's bytes in place, without a copy; None where they are compressed or not in RAM."""
        arena = self._arena
        if arena is None:
            return None
        # Upstream's own spelling is the normal one; only a miss pays for normalising another.
        found = arena.view(filepath) if type(filepath) is str else None
        return arena.view(_listed(filepath)) if found is None else found

    def read_image(self, filepath: str, delete_problematic_images: bool = False) -> Any:
        arena = self._arena
        if arena is not None and isinstance(filepath, str) and self._is_decoded_from_bytes(filepath):
            number = arena.find(_listed(filepath))
            if number is not None:
                try:
                    return upstream.load_image(arena.read(number))
                except Exception:
                    # Upstream's own path fails the same way, and knows what to log, delete and raise.
                    pass
        return super().read_image(filepath, delete_problematic_images)

    def _is_decoded_from_bytes(self, filepath: str) -> bool:
        suffix = os.path.splitext(filepath)[1].lower().strip(".")
        dataset_type = getattr(self, "dataset_type", None)
        return suffix not in _OPENED_BY_PATH and getattr(dataset_type, "value", dataset_type) != "audio"

    def write(self, filepath: Any, data: Any) -> None:
        self._forget(filepath)
        super().write(filepath, data)

    def delete(self, filepath: Any) -> None:
        self._forget(filepath)
        super().delete(filepath)

    def open_file(self, filepath: Any, mode: str) -> Any:
        if set("wax+") & set(mode):
            self._forget(filepath)
        return super().open_file(filepath, mode)

    def torch_save(self, data: Any, original_location: Any) -> None:
        if isinstance(original_location, str):
            self._forget(original_location)
        super().torch_save(data, original_location)

    def _forget(self, filepath: Any) -> None:
        """Before the file changes, so that no reader finds the old bytes after it has."""
        arena = self._arena
        if arena is None:
            return
        number = arena.find(_listed(filepath))
        if number is not None:
            arena.forget(number)
        try:
            status = os.stat(filepath)
        except (OSError, ValueError, TypeError):
            return
        if stat.S_ISREG(status.st_mode):
            arena.forget_file(status.st_dev, status.st_ino)

    def check_files(self) -> None:
        """Forgets and reports files that are no longer what was staged."""
        if self._arena is not None:
            self._report_changes(self._arena)

    def _report_changes(self, arena: SharedArena) -> None:
        report_files(self.id, "are not what was staged any more and are read from disk", forget_changed(arena))

    def release(self) -> None:
        """Gives the RAM back; every read from here on is upstream's."""
        self._arena = None

    @property
    def staged_files(self) -> int:
        return self._arena.files if self._arena is not None else 0


def local_backend(config: Any, backend: Any) -> Any:
    """The staged backend in the place of the local one upstream has just made."""
    known = staged()
    assert known is not None
    name = str(config.id)
    return staged_backend(config, backend, known.options[name], known.entries[name])


def staged_backend(config: Any, backend: Any, options: object, entry: Mapping[str, Any]) -> GH200InMemoryBackend:
    folder = getattr(config, "instance_data_dir", "") or entry.get("instance_data_dir", "")
    return GH200InMemoryBackend(
        accelerator=backend.accelerator,
        id=backend.id,
        compress_cache=backend.compress_cache,
        instance_data_dir=str(folder).strip(),
        options=options,
    )


def _listed(filepath: Any) -> str:
    """The spelling of the listing; others (`..`, a slash at the end, bytes) no arena knows: they are the system's."""
    try:
        path = os.fspath(filepath)
    except TypeError:
        return ""
    if not isinstance(path, str):
        return ""
    return path if path.startswith("/") else os.path.join(os.getcwd(), path)
