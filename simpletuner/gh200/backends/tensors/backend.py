"""The tier of a cache's data backend: cached entries are served from memory, every write invalidates."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...memory import hints
from .cache_kinds import CacheKind, consumer_of
from .store import MISS, CacheStore, file_signature

_WRITING = frozenset("wax+")


class UnifiedCacheTier:
    """Mixed into a data backend of local directories; without a store it changes nothing."""

    _store: CacheStore | None = None
    _kind: CacheKind = "vae"

    def attach_store(self, store: CacheStore, kind: CacheKind) -> None:
        """From here on; what a path's entry is for is decided by its directory where one backend serves two caches."""
        self._store, self._kind = store, kind

    @property
    def has_tier(self) -> bool:
        """Whether a store is attached."""
        return self._store is not None

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process has no use for this one's memory."""
        state: dict[str, Any] = self._upstream.__getstate__()
        return state | {"_store": None}

    @property
    def _upstream(self) -> Any:
        """The class it is mixed into, whose methods it calls."""
        return super()

    def _watching(self) -> CacheStore | None:
        """The store whose entries a change in this process concerns."""
        store = self._store
        return store if store is not None and store.usable else None

    def _serving(self) -> CacheStore | None:
        """The same store while it serves and takes in entries."""
        return self._watching() if hints.gh200_uvm_enabled() else None

    def torch_load(self, filename: Any) -> Any:
        """The entry from memory; on a miss from its file, cached for the next read."""
        store = self._serving()
        if store is None:
            return self._upstream.torch_load(filename)
        # Upstream's own spelling is the normal one; only a miss pays for normalising another.
        found = store.serve(filename)
        if found is not MISS:
            return found
        key = os.path.abspath(filename)
        found = store.serve(key)
        return self._admitted(store, key, filename) if found is MISS else found

    def _admitted(self, store: CacheStore, key: str, filename: Any) -> Any:
        seen, signature = store.changes, file_signature(key)
        try:
            with store.demanded():
                value = self._upstream.torch_load(filename)
        except Exception as error:
            store.drop(key)
            error.add_note(f"while the unified-memory cache read {filename}")
            raise
        if not store.admit(key, value, consumer_of(self._kind, key), seen, signature):
            return value
        found = store.serve(key)
        return value if found is MISS else found

    def exists(self, filepath: Any) -> Any:
        """Whether the entry is cached, or its file exists."""
        store = self._serving()
        return (store is not None and store.holds(filepath)) or self._upstream.exists(filepath)

    def torch_save(self, data: Any, original_location: Any) -> Any:
        """Saves the entry and caches it again."""
        return self._written(original_location, lambda: self._upstream.torch_save(data, original_location))

    def write(self, filepath: Any, data: Any) -> Any:
        """Upstream's write_batch calls it too, and it calls torch_save with a file that has no path yet."""
        return self._written(filepath, lambda: self._upstream.write(filepath, data))

    def delete(self, filepath: Any) -> Any:
        """Drops the entry, then deletes its file."""
        return self._changed(filepath, lambda: self._upstream.delete(filepath))

    def open_file(self, filepath: Any, mode: str) -> Any:
        """Drops the entry before its file is opened for writing."""
        if not _WRITING & set(mode):
            return self._upstream.open_file(filepath, mode)
        return self._changed(filepath, lambda: self._upstream.open_file(filepath, mode))

    def list_files(self, file_extensions: Any, instance_data_dir: Any) -> Any:
        """Lists files; entries are compared with theirs again."""
        store = self._watching()
        if store is not None:
            store.listed()
        return self._upstream.list_files(file_extensions, instance_data_dir)

    def _changed(self, path: Any, change: Callable[[], Any]) -> Any:
        store = self._watching()
        if store is None or not isinstance(path, str | os.PathLike):
            return change()
        key = os.path.abspath(path)
        store.drop(key)
        try:
            return change()
        finally:
            # Again: a reader may have taken the old content in, and there may be half of a new one.
            store.drop(key)

    def _written(self, path: Any, write: Callable[[], Any]) -> Any:
        """What was written is cached as a preload would cache it."""
        store = self._serving()
        if store is None or not isinstance(path, str | os.PathLike) or not os.fspath(path).endswith(".pt"):
            return self._changed(path, write)
        key = os.path.abspath(path)
        began = store.drop(key)
        try:
            result = write()
        except BaseException:
            store.drop(key)
            raise
        packed = bool(getattr(self, "compress_cache", False))
        store.admit_written(key, consumer_of(self._kind, key), began, packed=packed)
        return result
