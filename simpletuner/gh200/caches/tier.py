"""The tier on a cache's data backend: its methods serve held entries and watch every write, on that one object."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..memory import hints as uvm
from ..stand_in import StandIn, instead
from .arena import Consumer
from .store import MISS, CacheStore, file_signature

ON_THIS_MACHINE = frozenset({"local", "memory"})
_WRITING = frozenset("wax+")
_TIER = "_gh200_tier"


def has_tier(backend: Any) -> bool:
    return _TIER in getattr(backend, "__dict__", {})


class UnifiedCacheTier(StandIn):
    """`consumer` says who reads the entry of a path: one backend may serve caches of several kinds."""

    upstream_class, feature = "BaseDataBackend", "cache_config unified_memory"

    def __init__(self, backend: Any, store: CacheStore, consumer: Callable[[str], Consumer]) -> None:
        super().__init__()
        self._backend, self._store, self._consumer = backend, store, consumer
        local = getattr(backend, "type", None) in ON_THIS_MACHINE
        # Files of this machine are one namespace for all caches; a remote key means something per backend only.
        self._prefix = "" if local else f"{type(backend).__name__}:{getattr(backend, 'id', '')}:"
        self.take_over(backend)
        setattr(backend, _TIER, self)
        # pickle asks the object for it: a copy in another process has no use for this one's memory.
        backend.__reduce_ex__ = self._reduced

    def _reduced(self, protocol: Any) -> tuple[Any, ...]:
        plain: Any = type(self._backend)
        make, arguments, state, *rest = plain.__reduce_ex__(self._backend, protocol)
        ours = {*self.answers(), _TIER, "__reduce_ex__"}
        return make, arguments, {name: value for name, value in state.items() if name not in ours}, *rest

    def _key(self, path: Any) -> str:
        text: str = os.fspath(path)
        return self._prefix + text if self._prefix else os.path.abspath(text)

    @instead
    def torch_load(self, filename: Any) -> Any:
        store = self._store
        if not uvm.gh200_uvm_enabled() or not store.usable:
            return self.upstream.torch_load(filename)
        # Upstream's own spelling is the normal one; only a miss pays for normalising another.
        found = store.serve(filename) if not self._prefix else MISS
        if found is not MISS:
            return found
        key = self._key(filename)
        found = store.serve(key)
        return self._admitted(key, filename) if found is MISS else found

    def _admitted(self, key: str, filename: Any) -> Any:
        store = self._store
        seen, signature = store.changes, None if self._prefix else file_signature(key)
        try:
            with store.demanded():
                value = self.upstream.torch_load(filename)
        except Exception as error:
            store.drop(key)
            error.add_note(f"while the unified-memory cache read {filename}")
            raise
        if not store.admit(key, value, self._consumer(key), seen, signature):
            return value
        found = store.serve(key)
        return value if found is MISS else found

    @instead
    def exists(self, filepath: Any) -> Any:
        store = self._store
        if uvm.gh200_uvm_enabled() and store.usable and not self._prefix and store.holds(filepath):
            return True
        return self.upstream.exists(filepath)

    @instead
    def torch_save(self, data: Any, location: Any) -> Any:
        return self._written(location, lambda: self.upstream.torch_save(data, location))

    @instead
    def write(self, filepath: Any, data: Any) -> Any:
        """Upstream's write_batch calls it too, and it calls torch_save with a file that has no path yet."""
        return self._written(filepath, lambda: self.upstream.write(filepath, data))

    @instead
    def delete(self, filepath: Any) -> Any:
        return self._changed(filepath, lambda: self.upstream.delete(filepath))

    @instead
    def open_file(self, filepath: Any, mode: str) -> Any:
        if not _WRITING & set(mode):
            return self.upstream.open_file(filepath, mode)
        return self._changed(filepath, lambda: self.upstream.open_file(filepath, mode))

    @instead
    def list_files(self, *arguments: Any, **options: Any) -> Any:
        if self._store.usable:
            if self._prefix:
                self._store.drop_prefix(self._prefix)
            else:
                self._store.listed()
        return self.upstream.list_files(*arguments, **options)

    def _changed(self, path: Any, change: Callable[[], Any]) -> Any:
        if not self._store.usable or not isinstance(path, str | os.PathLike):
            return change()
        key = self._key(path)
        self._store.drop(key)
        try:
            return change()
        finally:
            # Again: a reader may have taken the old content in, and there may be half of a new one.
            self._store.drop(key)

    def _written(self, path: Any, write: Callable[[], Any]) -> Any:
        """What was written need not be read by training: it is held as a read ahead would hold it."""
        entry = isinstance(path, str | os.PathLike) and os.fspath(path).endswith(".pt")
        if not entry or self._prefix or not self._store.usable or not uvm.gh200_uvm_enabled():
            return self._changed(path, write)
        key, store = self._key(path), self._store
        began = store.drop(key)
        try:
            result = write()
        except BaseException:
            store.drop(key)
            raise
        store.hold_written(
            key, self._consumer(key), began, packed=bool(getattr(self._backend, "compress_cache", False))
        )
        return result
