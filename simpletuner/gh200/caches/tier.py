"""The tier in front of a cache's data backend: a transparent proxy that serves held entries and watches every write."""

from __future__ import annotations

import os
from typing import Any

from ..memory import hints as uvm
from .arena import Consumer
from .reader import WRITTEN
from .store import MISS, CacheStore, file_signature

ON_THIS_MACHINE = frozenset({"local", "memory"})
_WRITING = frozenset("wax+")


class UnifiedCacheTier:
    """Looks like the backend it stands for: same class to isinstance, same attributes, same errors."""

    def __init__(self, backend: Any, store: CacheStore, consumer: Consumer) -> None:
        local = getattr(backend, "type", None) in ON_THIS_MACHINE
        own = {
            "_gh200_backend": backend,
            "_gh200_store": store,
            "_gh200_consumer": consumer,
            # Files of this machine are one namespace for all caches; a remote key means something per backend only.
            "_gh200_prefix": "" if local else f"{type(backend).__name__}:{getattr(backend, 'id', '')}:",
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gh200_backend, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._gh200_backend, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._gh200_backend, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._gh200_backend)

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _itself, (self._gh200_backend,)  # a copy in another process has no use for this one's memory

    def __deepcopy__(self, memo: dict[int, Any]) -> UnifiedCacheTier:
        return self

    def __repr__(self) -> str:
        return f"<unified-memory tier of {self._gh200_backend!r}>"

    def _gh200_key(self, path: Any) -> str:
        text: str = os.fspath(path)
        return self._gh200_prefix + text if self._gh200_prefix else os.path.abspath(text)

    def _gh200_changed(self, *paths: Any) -> None:
        for path in paths if self._gh200_store.usable else ():
            if isinstance(path, str | os.PathLike):
                self._gh200_store.drop(self._gh200_key(path))

    def torch_load(self, filename: Any) -> Any:
        store = self._gh200_store
        if not uvm.gh200_uvm_enabled() or not store.usable:
            return self._gh200_backend.torch_load(filename)
        # Upstream's own spelling is the normal one; only a miss pays for normalising another.
        found = store.serve(filename) if not self._gh200_prefix else MISS
        if found is not MISS:
            return found
        key = self._gh200_key(filename)
        found = store.serve(key)
        return self._gh200_admitted(key, filename) if found is MISS else found

    def _gh200_admitted(self, key: str, filename: Any) -> Any:
        store = self._gh200_store
        seen, signature = store.changes, None if self._gh200_prefix else file_signature(key)
        try:
            with store.demanded():
                value = self._gh200_backend.torch_load(filename)
        except Exception as error:
            store.drop(key)
            error.add_note(f"while the unified-memory cache read {filename}")
            raise
        if not store.admit(key, value, self._gh200_consumer, seen, signature):
            return value
        found = store.serve(key)
        return value if found is MISS else found

    def exists(self, filepath: Any) -> Any:
        store = self._gh200_store
        if uvm.gh200_uvm_enabled() and store.usable and not self._gh200_prefix and store.holds(filepath):
            return True
        return self._gh200_backend.exists(filepath)

    def torch_save(self, data: Any, location: Any) -> Any:
        return self._gh200_write("torch_save", (data, location), {location: data})

    def write(self, filepath: Any, data: Any) -> Any:
        return self._gh200_write("write", (filepath, data), {filepath: data})

    def write_batch(self, filepaths: Any, data_list: Any) -> Any:
        written = dict(zip(filepaths, data_list, strict=False))
        return self._gh200_write("write_batch", (filepaths, data_list), written)

    def delete(self, filepath: Any) -> Any:
        return self._gh200_write("delete", (filepath,), {filepath: None})

    def _gh200_write(self, method: str, arguments: tuple[Any, ...], written: dict[Any, Any]) -> Any:
        paths = [path for path in written if isinstance(path, str | os.PathLike)] if self._gh200_store.usable else []
        began = {path: self._gh200_store.drop(self._gh200_key(path)) for path in paths}
        try:
            result = getattr(self._gh200_backend, method)(*arguments)
        except BaseException:
            # Again: a reader may have taken the old content in, and there may be half of a new one.
            self._gh200_changed(*paths)
            raise
        for path in paths:
            self._gh200_hold(path, written[path], began[path])
        return result

    def _gh200_hold(self, path: Any, value: Any, began: int) -> None:
        """What was written need not be read again: training finds it where a read would have put it."""
        store, key = self._gh200_store, self._gh200_key(path)
        if self._gh200_prefix or not uvm.gh200_uvm_enabled() or not isinstance(value, WRITTEN):
            store.drop(key)
            return
        store.hold_written(key, lambda arena: store.reader.read_back(key, value, arena), self._gh200_consumer, began)

    def open_file(self, filepath: Any, mode: str) -> Any:
        if _WRITING & set(mode):
            self._gh200_changed(filepath)
        return self._gh200_backend.open_file(filepath, mode)

    def list_files(self, *arguments: Any, **options: Any) -> Any:
        if not self._gh200_store.usable:
            return self._gh200_backend.list_files(*arguments, **options)
        if self._gh200_prefix:
            self._gh200_store.drop_prefix(self._gh200_prefix)
        else:
            self._gh200_store.listed()
        return self._gh200_backend.list_files(*arguments, **options)


def _itself(backend: Any) -> Any:
    return backend
