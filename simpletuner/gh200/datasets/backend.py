"""The in-memory dataset backend: upstream's local backend whose reads come from RAM, and whose writes go to disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from simpletuner.helpers.data_backend import local as upstream
from simpletuner.helpers.training import audio_file_extensions, image_file_extensions, video_file_extensions

from ..errors import GH200Error, stop
from ..settings.dataset_file import in_memory_options
from .arena import Handle, SharedArena, attach
from .check import forget_changed
from .elsewhere import Change
from .folder import StagedFolder
from .listing import Kinds
from .media import StagedPath, from_disk, staged_path
from .meeting import NoMeeting
from .party import Party, Run
from .places import Key
from .rendezvous import StagerFailed, share
from .sites import REPRESENTATION_KEY
from .staged import Source, outermost, staged
from .staging import report_files, stage

logger = logging.getLogger("gh200.in_memory")

_OPENED_BY_PATH = frozenset(audio_file_extensions) | frozenset(video_file_extensions)
_WITHOUT_MEETING = {
    True: "This process stages it for itself: other processes cannot share its memory.",
    False: "Ranks that cannot meet would each hold a copy: reading from disk.",
}
_KINDS = Kinds(images=frozenset(image_file_extensions) - _OPENED_BY_PATH, media=_OPENED_BY_PATH)


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
        self._folder: StagedFolder | None = None
        if instance_data_dir is not None:
            self._folder = self._staged_or_attached(os.path.abspath(instance_data_dir))
        self._join_the_run()

    def _join_the_run(self) -> None:
        if (known := staged()) is not None:
            known.backends.add(self)

    def _staged_or_attached(self, root: str) -> StagedFolder | None:
        known = staged()
        own = Source(str(self.id), os.path.realpath(root), self.options)
        outer = outermost(own, known.sources()) if known is not None else own
        folder = self._folder_of(outer, root)
        if outer is own or folder is None or folder.is_staged():
            return folder
        return self._folder_of(own, root)

    def _folder_of(self, source: Source, root: str) -> StagedFolder | None:
        options, run = source.options, Run.from_environment()
        party = Party(str(self.id), run, options.model_dump_json(exclude={"num_workers"}), options.patience_seconds)
        try:
            arena = share(
                Key.of(source.root, options.compression),
                party,
                lambda told: stage(source.dataset, source.root, options, _KINDS, told),
                self._report_changes,
            )
        except NoMeeting as error:
            logger.warning("(id=%s) %s\n%s", self.id, error, _WITHOUT_MEETING[run.alone])
            arena = stage(source.dataset, source.root, options, _KINDS) if run.alone else None
        return StagedFolder(arena, root) if arena is not None else None

    @property
    def _arena(self) -> SharedArena | None:
        return self._folder.arena if self._folder is not None else None

    def get_instance_representation(self) -> dict[str, Any]:
        representation: dict[str, Any] = super().get_instance_representation()
        if self._folder is not None:
            representation[REPRESENTATION_KEY] = self._described(self._folder)
        return representation

    @staticmethod
    def from_instance_representation(representation: dict[str, Any]) -> GH200InMemoryBackend:
        plain = upstream.LocalDataBackend.from_instance_representation(representation)
        rebuilt = GH200InMemoryBackend(plain.accelerator, plain.id, plain.compress_cache)
        if REPRESENTATION_KEY in representation:
            rebuilt._attach(representation[REPRESENTATION_KEY])
        return rebuilt

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_folder": None}
        return state | {REPRESENTATION_KEY: self._described(self._folder)} if self._folder is not None else state

    @staticmethod
    def _described(folder: StagedFolder) -> dict[str, Any]:
        return {"root": folder.root, **folder.arena.handle().as_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        handle = state.pop(REPRESENTATION_KEY, None)
        self.__dict__.update(state)
        self._join_the_run()
        if handle is not None:
            self._attach(handle)

    def _attach(self, described: dict[str, Any]) -> None:
        """For a process that was handed the representation: the same memory, or the disk where that is not possible."""
        handle = Handle.from_dict({key: value for key, value in described.items() if key != "root"})
        try:
            arena = attach(handle)
            self._report_changes(arena)
            self._folder = StagedFolder(arena, described["root"])
        except (OSError, GH200Error) as error:
            logger.warning(
                "(id=%s) The dataset in RAM of process %s is not available here (%s): reading from disk.",
                *(self.id, handle.pid, error),
            )

    def read(self, filepath: Any, as_byteIO: bool = False) -> Any:
        folder = self._folder
        number = None if folder is None else folder.find(_listed(filepath))
        if folder is None or number is None:
            return super().read(filepath, as_byteIO)
        data = folder.arena.read(number)
        return BytesIO(data) if as_byteIO else data

    def view(self, filepath: str) -> memoryview | None:
        """The file's bytes in place, without a copy; None where they are compressed or not in RAM."""
        folder = self._folder
        number = None if folder is None else folder.find(_listed(filepath))
        return None if folder is None or number is None else folder.arena.view_of(number)

    def read_image(self, filepath: str, delete_problematic_images: bool = False) -> Any:
        folder = self._folder
        if folder is not None and isinstance(filepath, str):
            number = folder.find(_listed(filepath))
            if number is not None:
                try:
                    return self._decoded(folder.arena, number, filepath)
                except Exception:
                    # Upstream's own path fails the same way, and knows what to log, delete and raise.
                    pass
        with from_disk():
            return super().read_image(filepath, delete_problematic_images)

    def _decoded(self, arena: SharedArena, number: int, filepath: str) -> Any:
        """Images from bytes; audio and video by upstream's own code, from a path that leads to the bytes in RAM."""
        if self._is_decoded_from_bytes(filepath):
            return upstream.load_image(arena.read(number))
        return _as_upstream_decodes(self, staged_path(arena, number, filepath))

    def path_in_ram(self, filepath: str) -> StagedPath | None:
        """For openers that take a path; None where the file is not in RAM."""
        folder = self._folder
        number = None if folder is None else folder.find(filepath)
        return None if folder is None or number is None else staged_path(folder.arena, number, filepath)

    def _is_decoded_from_bytes(self, filepath: str) -> bool:
        suffix = os.path.splitext(filepath)[1].lower().strip(".")
        dataset_type = getattr(self, "dataset_type", None)
        return suffix not in _OPENED_BY_PATH and getattr(dataset_type, "value", dataset_type) != "audio"

    def write(self, filepath: Any, data: Any) -> None:
        with _changing(filepath):
            super().write(filepath, data)

    def delete(self, filepath: Any) -> None:
        with _changing(filepath):
            super().delete(filepath)

    def open_file(self, filepath: Any, mode: str) -> Any:
        if not set("wax+") & set(mode):
            return super().open_file(filepath, mode)
        with _changing(filepath):
            return super().open_file(filepath, mode)

    def torch_save(self, data: Any, original_location: Any) -> None:
        if not isinstance(original_location, str):
            super().torch_save(data, original_location)
            return
        with _changing(original_location):
            super().torch_save(data, original_location)

    def check_files(self) -> None:
        """Forgets and reports files that are no longer what was staged."""
        if self._folder is not None:
            self._report_changes(self._folder.arena)

    def _report_changes(self, arena: SharedArena) -> None:
        problems = forget_changed(arena)
        report_files(self.id, "are not what was staged any more and are read from disk", problems)

    def release(self) -> None:
        """Gives the RAM back; every read from here on is upstream's."""
        self._folder = None

    @property
    def staged_files(self) -> int:
        return self._arena.files if self._arena is not None else 0


def _as_upstream_decodes(backend: GH200InMemoryBackend, path: str) -> Any:
    """Upstream judges by the dataset's type and the file's name."""
    plain = upstream.LocalDataBackend(backend.accelerator, backend.id, backend.compress_cache)
    if (dataset_type := getattr(backend, "dataset_type", None)) is not None:
        plain.dataset_type = dataset_type
    return plain.read_image(path)


@contextmanager
def _changing(filepath: Any) -> Iterator[None]:
    """Before, so that no reader finds the old bytes; and after, for an arena whose word was given in between."""
    change = Change(filepath)
    change.forget_everywhere()
    try:
        yield
    finally:
        change.forget_everywhere()


def local_backend(config: Any, backend: Any) -> Any:
    """The staged backend in the place of the local one upstream has just made."""
    known = staged()
    assert known is not None
    name = str(config.id)
    try:
        return staged_backend(config, backend, known.options[name], known.entries[name])
    except GH200Error as error:
        # A folder or a limit that cannot be used is a bad setting; the death of another rank is not.
        if known.exit_on_error and not isinstance(error, StagerFailed):
            stop(error)
        raise


def watched_backend(config: Any, backend: Any) -> Any:
    """A local dataset on a folder that another dataset holds in RAM: what it writes or deletes is forgotten there."""
    folder = str(getattr(config, "instance_data_dir", "") or "").strip()
    known = staged()
    if known is None or type(backend) is not upstream.LocalDataBackend or not known.overlaps(folder):
        return backend
    return GH200InMemoryBackend(backend.accelerator, backend.id, backend.compress_cache)


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
