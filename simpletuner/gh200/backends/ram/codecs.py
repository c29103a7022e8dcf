"""Compression of staged files: one table of codecs, each loaded when first asked for."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from ...errors import GH200Error

if TYPE_CHECKING:
    from ...config.schema import CodecName

Buffer = bytes | bytearray | memoryview

SAMPLE_BYTES = 64 << 10
# Below this gain the copy and the decompression on every read cost more than the memory is worth.
WORTH_IT = 0.9


class CodecUnavailable(GH200Error):
    """A codec whose package is not installed."""


@dataclass(frozen=True)
class Codec:
    """`decompress` is given the original size: every codec can then write into one buffer of the right length."""

    name: str
    compress: Callable[[Buffer], bytes]
    decompress: Callable[[Buffer, int], bytes]

    def ratio(self, sample: Buffer) -> float:
        """Judged by content: photographs and archives come out at their own size whatever they are called."""
        return len(self.compress(sample)) / len(sample) if len(sample) else 1.0


def _zlib(_: ModuleType) -> Codec:
    return Codec(
        "zlib", lambda data: zlib.compress(data, 1), lambda data, size: zlib.decompress(data, bufsize=max(size, 1))
    )


def _lz4(block: ModuleType) -> Codec:
    return Codec(
        "lz4",
        lambda data: block.compress(data, store_size=False),
        lambda data, size: block.decompress(data, uncompressed_size=size),
    )


def _snappy(snappy: ModuleType) -> Codec:
    return Codec("snappy", lambda data: bytes(snappy.compress(data)), lambda data, size: bytes(snappy.uncompress(data)))


def _zstd(zstandard: ModuleType) -> Codec:
    # Contexts of zstandard must not be shared between threads; making one is cheap beside the work.
    return Codec(
        "zstd",
        lambda data: zstandard.ZstdCompressor(level=1).compress(data),
        lambda data, size: zstandard.ZstdDecompressor().decompress(data, max_output_size=max(size, 1)),
    )


_CODECS: dict[CodecName, tuple[str, str, Callable[[ModuleType], Codec]]] = {
    "lz4": ("lz4.block", "lz4", _lz4),
    "zlib": ("zlib", "zlib", _zlib),
    "snappy": ("snappy", "python-snappy", _snappy),
    "zstd": ("zstandard", "zstandard", _zstd),
}


def load_codec(name: CodecName | None) -> Codec | None:
    """The codec of that name; None for none."""
    if name is None:
        return None
    module, package, build = _CODECS[name]
    try:
        return build(import_module(module))
    except ImportError as error:
        raise CodecUnavailable(
            f'The compression "{name}" needs the package {package}, which is not installed.',
            where="in_memory.compression",
            why=str(error),
            fix=f"pip install {package}, or use another codec, or none",
        ) from error
