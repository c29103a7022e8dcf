"""Reads an entry's file straight into an arena; torch's own archive reader and weights-only unpickler say what is where."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch._weights_only_unpickler import Unpickler

from ...memory.pages import extent
from .arena import TensorArena
from .blocks import Reserved, Slot, holdable

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_STORED = b"\0\0"
_METHOD = slice(8, 10)  # of a record's own header
# What torch.load looks at beside the byte order; younger than the format, so a file may lack them.
_FORMAT = {".format_version": b"1", ".storage_alignment": b"64"}
PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size})
_LARGEST_PICKLE = 1 << 20
_DEEPEST = 32
How = Literal["straight", "unpacked", "torch"]
Signature = tuple[int, int, int] | None
_Storage = tuple[torch.UntypedStorage, str, int]  # its record and that one's size


class Unreadable(Exception):
    """The file changed, vanished or was truncated while it was read, or has nothing that can be cached."""


class NotPlain(Exception):
    """Something that cannot be cached, or that this reader does not parse: `torch.load` reads the file."""


class Read(NamedTuple):
    """An entry in an arena: a Slot for each tensor; or, read by torch, the value itself and no slots yet."""

    value: Any
    slots: tuple[Slot, ...]
    signature: Signature
    bytes: int
    how: How


class Leaf(NamedTuple):
    """A tensor of an entry, and which bytes of which record of its file are its own."""

    record: str
    record_bytes: int
    start: int
    span: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def mapped(node: Any, change: Callable[[Any], Any], depth: int = _DEEPEST) -> Any:
    """The same dicts, lists and tuples anew, around what becomes of everything else."""
    kind = type(node)
    if depth == 0:
        raise NotPlain("an entry is nested too deeply")
    if kind is dict:
        if not PLAIN_TYPES.issuperset(map(type, node)):
            raise NotPlain("an entry has a dict with a key that is no plain value")
        return {key: mapped(item, change, depth - 1) for key, item in node.items()}
    if kind in (list, tuple):
        return kind([mapped(item, change, depth - 1) for item in node])
    return change(node)


def signature_of(found: os.stat_result) -> tuple[int, int, int]:
    """Modification time, size and inode: what changes with a file's content."""
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_entry(path: str, arena: TensorArena, *, compressed: bool = False) -> Read:
    """Raises Unreadable, OSError or ArenaFull; nothing of the arena is taken then."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # Asked for before the read: what changes from here on is another file to whoever compares the two.
        before = os.fstat(file)
        about = signature_of(before), before.st_size
        if compressed and os.pread(file, 2, 0) == _GZIP:
            with _inflated(file, before.st_size) as plain:
                value, slots, straight = _taken(plain, f"/proc/self/fd/{plain}", os.fstat(plain), arena)
            return Read(value, slots, *about, "unpacked" if straight else "torch")
        value, slots, straight = _taken(file, path, before, arena)
        return Read(value, slots, *about, "straight" if straight else "torch")
    finally:
        os.close(file)


def _taken(file: int, path: str, opened: os.stat_result, arena: TensorArena) -> tuple[Any, tuple[Slot, ...], bool]:
    reserved: list[Reserved] = []
    try:
        structure, leaves, offsets = _located(path, opened)
        reserved = arena.reserve(*[leaf.span for leaf in leaves])
        for leaf, (header, start), place in zip(leaves, offsets, reserved, strict=True):
            _read_leaf(file, leaf, header, start, place)
    except NotPlain:
        arena.give_back(reserved)
        return _through_torch(file), (), False
    except BaseException:
        arena.give_back(reserved)
        raise
    slots = tuple(
        arena.filled(place, leaf.dtype, leaf.shape, leaf.stride) for leaf, place in zip(leaves, reserved, strict=True)
    )
    waiting = iter(slots)
    return mapped(structure, lambda node: next(waiting) if type(node) is Leaf else node), slots, True


def _bytes_of(place: Reserved) -> memoryview:
    return memoryview(place.buffer).cast("B")[place.offset : place.offset + place.span]


def _read_leaf(file: int, leaf: Leaf, header: int, start: int, place: Reserved) -> None:
    """The record's own header and the tensor's bytes in one call: each one gives up the GIL, and waits for it again."""
    if not leaf.span:
        return
    before = bytearray(start - header)
    count = os.preadv(file, [before, _bytes_of(place)], header)
    if not before.startswith(_ZIP) or before[_METHOD] != _STORED:
        raise NotPlain("a damaged or compressed record, which torch does not write")
    if count != len(before) + leaf.span:
        raise Unreadable("it was truncated while it was read")


def _located(path: str, opened: os.stat_result) -> tuple[Any, tuple[Leaf, ...], list[tuple[int, int]]]:
    """The entry, its leaves, and where in the file the header of each one's record and its own bytes begin."""
    try:
        # By its path: through the descriptor's link in /proc it takes twice as long.
        archive: Any = torch._C.PyTorchFileReader(path)
        if not os.path.samestat(opened, os.stat(path)):
            raise Unreadable("another file has its path by now")
        if archive.has_record("constants.pkl") or archive.get_record("byteorder") != b"little":
            raise NotPlain("a program, or another byte order")
        for record, text in _FORMAT.items():
            if archive.has_record(record) and archive.get_record(record) != text:
                raise NotPlain(f"another {record}")
        pickled = archive.get_record("data.pkl")
        if archive.get_record_header_offset("data.pkl"):
            raise NotPlain("torch.load looks for an archive's mark at the beginning of a file")
        structure, leaves = structure_of(pickled)
        return structure, leaves, [_offsets_of(archive, leaf) for leaf in leaves]
    except (RuntimeError, UnicodeDecodeError) as error:
        # A damaged name ends in the message of the error, as it is.
        raise NotPlain(f"no archive of torch's: {error}") from error


def _offsets_of(archive: Any, leaf: Leaf) -> tuple[int, int]:
    if archive.get_record_size(leaf.record) != leaf.record_bytes:
        raise NotPlain("a record of another size than its storage")
    header, start = archive.get_record_header_offset(leaf.record), archive.get_record_offset(leaf.record) + leaf.start
    if start - header > _LARGEST_PICKLE:
        raise NotPlain("a tensor deep inside of a large storage")
    return header, start


@lru_cache(maxsize=1024)
def structure_of(pickled: bytes) -> tuple[Any, tuple[Leaf, ...]]:
    """An entry with a Leaf in the place of each tensor, and those by themselves; kept, as files of one shape have one pickle.

    torch's weights-only unpickler reads it, with storages that have sizes and no bytes.
    """
    if len(pickled) > _LARGEST_PICKLE:
        raise NotPlain("a pickle of more than a megabyte")
    storages: dict[int, _Storage] = {}

    def without_bytes(saved: Any) -> torch.storage.TypedStorage:
        word, kind, key, location, elements = saved
        if word != "storage" or location == "meta":
            raise NotPlain("a storage of another kind")
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        size = elements * dtype.itemsize
        storage = torch.UntypedStorage(size, device="meta")
        # Its size now: a tensor that does not fit makes a storage without bytes larger.
        storages[storage._cdata] = storage, f"data/{key}", size
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    unpickler = Unpickler(io.BytesIO(pickled), encoding="utf-8")
    unpickler.persistent_load = without_bytes  # type: ignore[method-assign]
    leaves: list[Leaf] = []

    def with_leaf(node: Any) -> Any:
        if type(node) is torch.Tensor:
            leaves.append(_leaf(node, storages))
            return leaves[-1]
        if type(node) not in PLAIN_TYPES:
            raise NotPlain(f"a {type(node).__name__}")
        return node

    try:
        entry = unpickler.load()
        return mapped(entry, with_leaf), tuple(leaves)
    except Exception as error:
        # torch.load reports what is wrong with it.
        raise NotPlain(f"{type(error).__name__}: {error}") from error


def _leaf(tensor: torch.Tensor, storages: dict[int, _Storage]) -> Leaf:
    _, record, size = storages[tensor.untyped_storage()._cdata]
    start, span = int(tensor.storage_offset()) * tensor.element_size(), extent(tensor)
    if not holdable(tensor, "meta") or (span and start + span > size):
        raise NotPlain("a tensor with more than values, or one larger than its storage")
    return Leaf(record, size, start, span, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _whole(file: int) -> bytes:
    with open(os.dup(file), "rb", buffering=0) as again:
        again.seek(0)
        return again.readall()


@contextmanager
def _inflated(file: int, size: int) -> Iterator[int]:
    """A file of what a compressed one holds; the inflating itself does not hold the GIL."""
    content = _whole(file)
    machine = zlib.decompressobj(wbits=31)
    try:
        # One byte more than the file says it holds: with none to spare the end of the stream is not looked at.
        found = machine.decompress(content, int.from_bytes(content[-4:], "little") + 1)
    except zlib.error as error:
        raise Unreadable(f"its compression is damaged: {error}") from error
    if not machine.eof or machine.unused_data or len(content) != size:
        raise Unreadable("its compression is of another kind")
    plain = os.memfd_create("gh200-entry")
    try:
        with open(plain, "wb", buffering=0, closefd=False) as target:
            target.write(found)
        yield plain
    finally:
        os.close(plain)


def _through_torch(file: int) -> Any:
    try:
        return torch.load(io.BytesIO(_whole(file)), map_location="cpu", weights_only=True)
    except Exception as error:
        # SimpleTuner reports it when training reads the file.
        raise Unreadable(
            f"torch.load rejects it: {str(error).splitlines()[0][:200] if str(error) else error!r}"
        ) from error
