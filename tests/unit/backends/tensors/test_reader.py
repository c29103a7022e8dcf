"""The reader of torch's files against torch.load, bit-identical: every kind of entry, damage, and files that mean harm."""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gh200_lab.memory_run import begin_memory_run
from simpletuner.gh200.backends.tensors.arena import TensorArena
from simpletuner.gh200.backends.tensors.blocks import ArenaFull, CacheBudget
from simpletuner.gh200.backends.tensors.entry import build
from simpletuner.gh200.backends.tensors.reader import NotPlain, Unreadable, read_entry, signature_of, structure_of
from simpletuner.gh200.config.cache_options import CacheOptions
from tests.support.fake_cache_backend import unified

STORED = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn,
]  # fmt: skip
BASE = torch.arange(240, dtype=torch.float32)
PLAIN: dict[str, Callable[[], Any]] = {
    "a latent": lambda: torch.randn(16, 8, 8).bfloat16(),
    "a scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 4),
    "transposed": lambda: torch.randn(4, 6).t(),
    "expanded": lambda: torch.randn(4, 1).expand(4, 7),
    "channels last": lambda: torch.randn(1, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "a slice of a larger storage": lambda: BASE[40:160].view(10, 12)[:, ::3],
    "not finite": lambda: torch.tensor([float("nan"), float("inf"), -0.0]),
    "a dict of tensors": lambda: {"a": torch.randn(3), "b": torch.ones(2, dtype=torch.int64), "e": torch.empty(0)},
    "nested": lambda: {"l": [torch.ones(2), (1, "ä\n", None, 2.5, True, -7, 2**70)], "s": torch.Size([1, 2])},
    "values only": lambda: {"d": torch.float16, 3: [], None: {}, "t": ()},
    "one storage twice": lambda: {"a": BASE[:10], "b": BASE[5:20]},
    "one tensor twice": lambda: [BASE, BASE],
    "many": lambda: [torch.full((n,), float(n)) for n in range(40)],
    "bytes": lambda: {"b": b"abc"},
    "a container twice": lambda: [[1]] * 2,
    **{f"{dtype}": lambda dtype=dtype: torch.arange(30).reshape(5, 6).to(dtype) for dtype in STORED},
}
OTHER: dict[str, Callable[[], Any]] = {
    "a parameter": lambda: {"w": torch.nn.Parameter(torch.ones(2))},
    "with a gradient": lambda: torch.ones(2, requires_grad=True),
    "an ordered dict": lambda: OrderedDict(a=torch.ones(2)),
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
}


@pytest.fixture(autouse=True)
def _one_run() -> Iterator[None]:
    begin_memory_run(unified())
    yield
    begin_memory_run(CacheOptions())


@pytest.fixture
def arena() -> TensorArena:
    return TensorArena(CacheBudget(None), "host", block_size=4 << 20)


def saved(path: Path, value: Any, **options: Any) -> Path:
    with path.open("wb") as file:
        torch.save(value, file, **options)
    return path


def same(found: Any, wanted: Any) -> bool:
    """Equal in type, structure and every bit."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, torch.Tensor):
        facts = [(one.dtype, one.shape, one.stride(), one.requires_grad, one.device) for one in (found, wanted)]
        return facts[0] == facts[1] and bits(found) == bits(wanted)
    if isinstance(wanted, dict):
        pairs = zip(found.items(), wanted.items(), strict=True)
        return len(found) == len(wanted) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted) or found != found


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().contiguous()
    return bytes(plain.view(-1).view(torch.uint8).tolist()) if plain.numel() else b""


def read_in(path: Path, arena: TensorArena, **options: Any) -> tuple[Any, str]:
    read = read_entry(str(path), arena, **options)
    return build(read.value), read.how


@pytest.mark.parametrize("kind", PLAIN)
def test_reads_what_torch_load_reads(kind: str, arena: TensorArena, tmp_path: Path) -> None:
    make = PLAIN[kind]
    for number in range(3):
        path = saved(tmp_path / f"{number}.pt", make())
        assert read_in(path, arena)[1] == "straight"
        assert same(read_in(path, arena)[0], torch.load(path, map_location="cpu"))
    by_path = tmp_path / "named after its file.pt"
    torch.save(make(), by_path)
    assert same(read_in(by_path, arena)[0], torch.load(by_path))


@pytest.mark.parametrize("kind", [*PLAIN, *OTHER])
def test_reads_compressed_entries_as_torch_load_does(kind: str, arena: TensorArena, tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain.pt", (PLAIN | OTHER)[kind]())
    packed = tmp_path / "packed.pt"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found, how = read_in(packed, arena, compressed=True)
    assert same(found, torch.load(plain)) and how == ("unpacked" if kind in PLAIN else "torch")
    # Upstream takes a file that is not compressed as it is.
    assert same(read_in(plain, arena, compressed=True)[0], torch.load(plain))


@pytest.mark.parametrize("kind", OTHER)
def test_leaves_other_kinds_to_torch(kind: str, arena: TensorArena, tmp_path: Path) -> None:
    path = saved(tmp_path / "entry.pt", OTHER[kind]())
    found, how = read_in(path, arena)
    assert how == "torch" and same(found, torch.load(path)) and arena.stats().tensors == 0


def test_leaves_the_old_format_to_torch(arena: TensorArena, tmp_path: Path) -> None:
    path = saved(tmp_path / "entry.pt", {"a": torch.ones(3)}, _use_new_zipfile_serialization=False)
    found, how = read_in(path, arena)
    assert how == "torch" and same(found, torch.load(path))


def test_leaves_out_protocols_torch_rejects(arena: TensorArena, tmp_path: Path) -> None:
    path = saved(tmp_path / "entry.pt", {"a": torch.ones(3)}, pickle_protocol=4)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path)
    with pytest.raises(Unreadable, match="torch.load rejects it"):
        read_entry(str(path), arena)


def test_takes_entries_saved_on_a_gpu(arena: TensorArena, tmp_path: Path) -> None:
    path = saved(tmp_path / "entry.pt", torch.arange(9.0))
    content = path.read_bytes()
    at = content.index(b"X\x03\x00\x00\x00cpu")
    pickled = (
        zipfile.ZipFile(path).read("archive/data.pkl").replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    )
    assert at and structure_of(pickled)[1][0].shape == (9,)
    with pytest.raises(NotPlain):
        structure_of(pickled.replace(b"\x06\x00\x00\x00cuda:0", b"\x04\x00\x00\x00meta"))


def test_a_file_of_the_same_size_and_another_layout(arena: TensorArena, tmp_path: Path) -> None:
    values = [torch.randn(4, 6), torch.randn(6, 4), torch.randn(4, 6).view(torch.int32), torch.randn(24)]
    paths = [saved(tmp_path / f"{n}.pt", value) for n, value in enumerate(values)]
    assert len({path.stat().st_size for path in paths[:2]}) == 1
    for path, value in [*zip(paths, values, strict=True)] * 3:
        assert same(read_in(path, arena)[0], value)


def test_every_byte_of_a_file_may_be_damaged(arena: TensorArena, tmp_path: Path) -> None:
    """A damaged file gives what it had, what torch.load gives, or nothing: never other values."""
    undamaged = {"a": torch.arange(6.0), "b": torch.ones(3).bool()}
    whole = saved(tmp_path / "whole.pt", undamaged).read_bytes()
    path = tmp_path / "damaged.pt"
    path.write_bytes(whole)
    read_in(path, arena)
    agreed = 0
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            found, how = read_in(path, arena)
        except Unreadable:
            continue
        if not same(found, undamaged):  # by damage to what is not read
            assert same(found, torch.load(path, map_location="cpu", weights_only=True)), (place, how)
        agreed += how == "straight" and not same(found, undamaged)
    assert agreed, "damaged values are read as torch.load reads them: it does not look at checksums either"


def test_every_cut_of_a_file(arena: TensorArena, tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole.pt", torch.randn(20)).read_bytes()
    path = tmp_path / "cut.pt"
    path.write_bytes(whole)
    read_in(path, arena)
    before = arena.stats()
    for size in range(0, len(whole) - 8, 11):
        for content in (whole[:size], whole[:size].ljust(len(whole), b"\0")):
            path.write_bytes(content)
            try:
                read = read_entry(str(path), arena)
            except Unreadable:
                continue
            # The rest of the directory may do for torch: it has two ends, and only the second was cut.
            assert same(build(read.value), torch.load(path)) and size > len(whole) - 100
            for slot in read.slots:
                arena.release(slot)
    assert arena.stats().tensors == before.tensors, "what was reserved is given back"


def test_a_file_that_changes_while_it_is_read(
    arena: TensorArena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "entry.pt", torch.zeros(8))
    read_in(path, arena)
    original = os.preadv

    def preadv(*arguments: Any) -> int:
        os.utime(path, ns=(1, 1))
        return original(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    then = signature_of(path.stat())
    assert read_entry(str(path), arena).signature == then != signature_of(path.stat()), "so it is not served"


@pytest.mark.parametrize("left", [0, 200, 700])
def test_a_file_that_is_cut_while_it_is_read(
    arena: TensorArena, tmp_path: Path, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "entry.pt", torch.zeros(800))
    original = os.preadv

    def preadv(*arguments: Any) -> int:
        os.truncate(path, left)
        return original(*arguments)

    before = arena.stats().tensors
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        with pytest.raises(Unreadable):
            read_entry(str(path), arena)
    assert arena.stats().tensors == before


def test_a_full_arena_takes_nothing(tmp_path: Path) -> None:
    small = TensorArena(CacheBudget(2048), "host")
    path = saved(tmp_path / "entry.pt", [torch.ones(100), torch.ones(500)])
    with pytest.raises(ArenaFull):
        read_entry(str(path), small)
    assert small.stats().tensors == small.stats().payload_bytes == 0


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


HARM = [
    b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
    b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.",
    b"\x80\x02(X\x04\x00\x00\x00trueios\nsystem\n.",
    b"\x80\x02ctorch\nFloatStorage\n)\x81.",
    b"\x80\x02ctorch\nload\nX\x01\x00\x00\x00x\x85R.",
    b"\x80\x02c__builtin__\neval\n.",
    b"\x80\x02ctorch\nSize\n.",
    b"\x80\x02]q\x00h\x00a.",
    b"\x80\x02" + b"]" * 60 + b"a" * 59 + b".",
    b"\x80\x02(.", b"\x80\x02.", b"\x80\x02t.", b"\x80\x02X\xff\xff\xff\xffa.", b"",
]  # fmt: skip


@pytest.mark.parametrize("pickled", HARM)
def test_a_pickle_is_read_and_never_run(pickled: bytes) -> None:
    with pytest.raises(NotPlain):
        structure_of(pickled)


def test_malicious_files_do_nothing(arena: TensorArena, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    torch.save(Bomb(mark), tmp_path / "zipped.pt")
    torch.save({"latents": torch.ones(2), "x": Bomb(mark)}, tmp_path / "hidden.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Bomb(mark), protocol=2))
    (tmp_path / "packed.pt").write_bytes(gzip.compress((tmp_path / "zipped.pt").read_bytes()))
    for path in tmp_path.glob("*.pt"):
        with pytest.raises(Unreadable):
            read_entry(str(path), arena, compressed=path.stem == "packed")
    assert not mark.exists() and arena.stats().tensors == 0


def test_a_tensor_beyond_its_storage_is_left_to_torch(arena: TensorArena, tmp_path: Path) -> None:
    path = saved(tmp_path / "entry.pt", torch.zeros(4))
    content = path.read_bytes()
    for wrong in (content.replace(b"K\x04\x85", b"K\x05\x85"), content.replace(b"K\x04t", b"K\x09t")):
        assert wrong != content
        path.write_bytes(wrong)
        with pytest.raises(Unreadable, match="torch.load rejects it"):
            read_entry(str(path), arena)


@pytest.mark.parametrize("order", [b"bigger", b"BIGEND"])
def test_another_byte_order_is_left_to_torch(order: bytes, arena: TensorArena, tmp_path: Path) -> None:
    path = saved(tmp_path / "entry.pt", torch.ones(3))
    path.write_bytes(path.read_bytes().replace(b"little", order))
    with pytest.raises(Unreadable):
        read_entry(str(path), arena)


def test_records_that_zip_tools_write_are_left_to_torch(arena: TensorArena, tmp_path: Path) -> None:
    """Packed by another tool: compressed records, or the directory in another order than the file."""
    path = saved(tmp_path / "entry.pt", {"a": torch.zeros(50), "b": torch.ones(3)})
    source = zipfile.ZipFile(path)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        target = tmp_path / f"{method}.pt"
        with zipfile.ZipFile(target, "w", method) as copy:
            for name in source.namelist():
                copy.writestr(name, source.read(name))
        found, how = read_in(target, arena)
        assert same(found, torch.load(path)) and how == ("torch" if method else "straight")


NUMBERS = st.integers(-(2**80), 2**80) | st.floats() | st.booleans() | st.none() | st.text(max_size=8)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(STORED))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    start, whole = draw(st.integers(0, 3)), torch.arange(300).to(dtype)
    tensor = whole[start : start + torch.Size(shape).numel()].reshape(shape)
    if draw(st.booleans()):
        tensor = tensor.clone()
    return tensor.mT if tensor.ndim > 1 and draw(st.booleans()) else tensor


ENTRIES = st.recursive(
    NUMBERS | tensors(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(NUMBERS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entry=ENTRIES)
def test_any_plain_entry_is_as_torch_load_reads_it(entry: Any, tmp_path: Path) -> None:
    arena = TensorArena(CacheBudget(None), "host", block_size=2 << 20)
    path = saved(tmp_path / "entry.pt", entry)
    for _ in range(2):
        assert same(read_in(path, arena)[0], torch.load(path))


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_data(content: bytes) -> None:
    for pickled in (content, b"\x80\x02" + content, b"\x80\x02" + content + b"."):
        try:
            structure_of(pickled)
        except NotPlain:
            pass
