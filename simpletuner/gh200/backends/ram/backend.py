"""The in-memory dataset backend: upstream's local backend whose reads come from RAM, and whose writes go to disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from simpletuner.helpers.data_backend import local as upstream
from simpletuner.helpers.training import audio_file_extensions, video_file_extensions

from ...config.dataset_file import in_memory_options
from ...errors import GH200Error, stop
from .arena import SharedArena
from .directory import StagedDirectory, listed
from .invalidation import forget_changed, forget_path
from .media_paths import StagedPath, from_disk, staged_path
from .page_cache import PageCacheWindow
from .registry import staged
from .sharing import StagerEnded, shared_arena
from .staging import stage
from .unstaged_report import NewFiles, report_files

logger = logging.getLogger("gh200.in_memory")

_OPENED_BY_PATH = frozenset(audio_file_extensions) | frozenset(video_file_extensions)


class GH200InMemoryBackend(upstream.LocalDataBackend):  # type: ignore[misc]
    """Returns and raises what `local` does; files that are not in RAM are read by SimpleTuner's own code."""

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
        self._directory: StagedDirectory | None = None
        self._new_files = NewFiles()
        self._window: PageCacheWindow | None = None
        if instance_data_dir is not None:
            self._directory = self._staged_or_attached(os.path.abspath(instance_data_dir))
        if (known := staged()) is not None:
            known.backends.add(self)
            if known.others_write:
                self.compare_before_reads()

    def _staged_or_attached(self, root: str) -> StagedDirectory | None:
        real = os.path.realpath(root)
        arena = shared_arena(
            str(self.id), real, self.options.compression, lambda: stage(str(self.id), real, self.options)
        )
        if arena is None:
            return None
        # Also where it was staged before, for another backend: the files may have changed since.
        if arena.is_owned:
            self._report_changes(arena)
        if arena.header.get("page_cache"):
            prefix = root.rstrip("/") + "/"
            self._window = PageCacheWindow([prefix + os.fsdecode(name) for name, _ in arena.index.names()])
        return StagedDirectory(arena, root)

    @property
    def _arena(self) -> SharedArena | None:
        return self._directory.arena if self._directory is not None else None

    def get_instance_representation(self) -> dict[str, Any]:
        """For a process of upstream's, which makes a local backend of it and writes to the disk."""
        if (known := staged()) is not None:
            known.expect_other_writers()
        self.compare_before_reads()
        representation: dict[str, Any] = super().get_instance_representation()
        return representation

    def __getstate__(self) -> dict[str, Any]:
        """As for a description: another process reads from the disk."""
        self.get_instance_representation()
        return self.__dict__ | {"_directory": None, "_window": None}

    def compare_before_reads(self) -> None:
        """From here on nothing is read from RAM that is not the file on disk, in any process that shares it."""
        if self._directory is not None:
            self._directory.arena.compare_before_reads()

    def _find(self, path: str) -> tuple[SharedArena, int] | None:
        """Where the file is in RAM; None where it is read from disk."""
        directory = self._directory
        number = None if directory is None else directory.find(path)
        return None if directory is None or number is None else (directory.arena, number)

    def is_staged(self, path: Any) -> bool:
        """Whether this file is read from RAM."""
        return self._find(listed(path)) is not None

    def _report_new(self, path: str) -> None:
        self._new_files.report(self.id, self._directory, path)

    def read(self, filepath: Any, as_byteIO: bool = False) -> Any:
        """The bytes of a file, from RAM where it is staged."""
        path = listed(filepath)
        if (found := self._find(path)) is None:
            read = super().read(filepath, as_byteIO)
            self._report_new(path)
            self._passed(path)
            return read
        arena, number = found
        data = arena.read(number)
        return BytesIO(data) if as_byteIO else data

    def read_image(self, filepath: str, delete_problematic_images: bool = False) -> Any:
        """A decoded file, from RAM where it is staged."""
        path = listed(filepath) if isinstance(filepath, str) else ""
        if (found := self._find(path)) is not None:
            try:
                return self._decoded(*found, filepath)
            except Exception:
                # Upstream's own path fails the same way, and knows what to log, delete and raise.
                pass
        self._report_new(path)
        with from_disk():
            image = super().read_image(filepath, delete_problematic_images)
        self._passed(path)
        return image

    def _passed(self, path: str) -> None:
        if self._window is not None:
            self._window.passed(path)

    def _decoded(self, arena: SharedArena, number: int, filepath: str) -> Any:
        """Images from bytes; audio and video by upstream's own code, from a path that leads to the bytes in RAM."""
        if self._is_decoded_from_bytes(filepath):
            return upstream.load_image(arena.read(number))
        return _as_upstream_decodes(self, staged_path(arena, number, filepath))

    def path_in_ram(self, filepath: str) -> StagedPath | None:
        """For openers that take a path; None where the file is not in RAM."""
        if (found := self._find(filepath)) is None:
            self._report_new(filepath)
            return None
        return staged_path(*found, filepath)

    def _is_decoded_from_bytes(self, filepath: str) -> bool:
        suffix = os.path.splitext(filepath)[1].lower().strip(".")
        dataset_type = getattr(self, "dataset_type", None)
        return suffix not in _OPENED_BY_PATH and getattr(dataset_type, "value", dataset_type) != "audio"

    # A path is forgotten before it is changed: from then on it is read from disk, by everybody, for good.
    def write(self, filepath: Any, data: Any) -> None:
        """Writes to disk."""
        forget_path(filepath)
        super().write(filepath, data)

    def delete(self, filepath: Any) -> None:
        """Deletes from disk."""
        forget_path(filepath)
        super().delete(filepath)

    def open_file(self, filepath: Any, mode: str) -> Any:
        """Opens the file on disk."""
        if set("wax+") & set(mode):
            forget_path(filepath)
        return super().open_file(filepath, mode)

    def torch_save(self, data: Any, original_location: Any) -> None:
        """Saves to disk."""
        if isinstance(original_location, str):
            forget_path(original_location)
        super().torch_save(data, original_location)

    def check_files(self) -> None:
        """Forgets and reports files that are no longer what was staged, for all processes that share them."""
        if self._directory is not None and self._directory.arena.is_owned:
            self._report_changes(self._directory.arena)

    def _report_changes(self, arena: SharedArena) -> None:
        problems = forget_changed(arena)
        report_files(self.id, "are not what was staged any more and are read from disk", problems)

    def release(self) -> None:
        """Gives the RAM back; every read from here on is upstream's."""
        self._directory = None

    @property
    def staged_files(self) -> int:
        """How many files are in RAM."""
        return self._arena.files if self._arena is not None else 0


def _as_upstream_decodes(backend: GH200InMemoryBackend, path: str) -> Any:
    """Upstream judges by the dataset's type and the file's name."""
    plain = upstream.LocalDataBackend(backend.accelerator, backend.id, backend.compress_cache)
    if (dataset_type := getattr(backend, "dataset_type", None)) is not None:
        plain.dataset_type = dataset_type
    return plain.read_image(path)


def local_backend(config: Any, backend: Any, kind: type[GH200InMemoryBackend]) -> Any:
    """The staged backend in the place of the local one upstream has just made."""
    known = staged()
    assert known is not None
    name = str(config.id)
    try:
        return staged_backend(config, backend, known.options[name], known.entries[name], kind)
    except GH200Error as error:
        # A directory or a limit that cannot be used is a bad setting; the death of another rank is not.
        if known.exit_on_error and not isinstance(error, StagerEnded):
            stop(error)
        raise


def watched_backend(config: Any, backend: Any, kind: type[GH200InMemoryBackend]) -> Any:
    """A local dataset on a directory that another dataset holds in RAM: what it writes or deletes is forgotten there."""
    directory = str(getattr(config, "instance_data_dir", "") or "").strip()
    known = staged()
    if known is None or type(backend) is not upstream.LocalDataBackend or not known.overlaps(directory):
        return backend
    return kind(backend.accelerator, backend.id, backend.compress_cache)


def staged_backend(
    config: Any,
    backend: Any,
    options: object,
    entry: Mapping[str, Any],
    kind: type[GH200InMemoryBackend] = GH200InMemoryBackend,
) -> GH200InMemoryBackend:
    """A backend of that class for a dataset, staged or attached."""
    directory = getattr(config, "instance_data_dir", "") or entry.get("instance_data_dir", "")
    return kind(
        accelerator=backend.accelerator,
        id=backend.id,
        compress_cache=backend.compress_cache,
        instance_data_dir=str(directory).strip(),
        options=options,
    )
