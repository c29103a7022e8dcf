"""The in-memory backend beside upstream's local one: equal trees, a child process each, and the same calls to both."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from PIL import Image

from simpletuner.gh200.backends.ram.backend import GH200InMemoryBackend
from simpletuner.helpers.data_backend.builders.in_memory import InMemoryBackendBuilder
from simpletuner.helpers.data_backend.factory import from_instance_representation
from simpletuner.helpers.data_backend.local import LocalDataBackend

__all__ = ["Config", "Differential", "GH200InMemoryBackend", "InMemoryBackendBuilder", "LocalDataBackend", "make_tree"]

FILES = (
    "a.png",
    "a.txt",
    "sub/b.jpg",
    "sub/b.txt",
    "sub/deep/mask.bmp",
    "empty.txt",
    "broken.png",
    "table.parquet",
    "tone.wav",
)
SPELLINGS = (
    "{root}/{name}",
    "{root}/sub/../{name}",
    "{root}//{name}",
    "{root}/{name}/",
    "{relative}/{name}",
    "{root}/linked/{name}",
)
OTHER = (
    "new.txt",
    "new/x.pt",
    "aspect_ratio_bucket_indices_x.json",
    "link.txt",
    "sub",
    "\u00fcml\u00e4ut.txt",
    "saved.pt",
)

LINKS = {"link.txt": "a.txt"}

# Names of temporary files and addresses of objects, in messages.
NOT_REPEATABLE = re.compile(r"\btmp[a-z0-9_]{8}\b|\b0x[0-9a-f]+\b")


def make_tree(root: Path) -> None:
    (root / "sub/deep").mkdir(parents=True)
    Image.new("RGB", (24, 16), (200, 10, 30)).save(root / "a.png")
    Image.radial_gradient("L").resize((48, 32)).convert("RGB").save(root / "sub/b.jpg")
    Image.new("L", (64, 64), 255).save(root / "sub/deep/mask.bmp")
    (root / "a.txt").write_text("a red square " * 300)
    (root / "sub/b.txt").write_text("a gradient")
    (root / "empty.txt").write_bytes(b"")
    (root / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    (root / "table.parquet").write_bytes(bytes(range(256)) * 40)
    (root / "tone.wav").write_bytes(b"RIFF but no audio")
    (root / "aspect_ratio_bucket_indices_x.json").write_text("{}")
    torch.save({"latents": torch.arange(4)}, root / "saved.pt")
    (root / "link.txt").symlink_to("a.txt")
    (root / "linked").symlink_to(".")


def plain(value: Any, root: str) -> Any:
    """The result without the parts that must differ: the root, and object identity."""
    if isinstance(value, BaseException):
        return type(value).__name__, NOT_REPEATABLE.sub("_", _without_root(str(value), root))
    if isinstance(value, io.IOBase):
        with value:
            content = value.read() if value.readable() else None
        return type(value).__name__, content
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes()
    if isinstance(value, torch.Tensor | numpy.ndarray):
        return type(value).__name__, value.tolist()
    if isinstance(value, dict):
        return {key: plain(item, root) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item, root) for item in value)
    return _without_root(value, root) if isinstance(value, str) else value


def _without_root(text: str, root: str) -> str:
    return text.replace(root, "ROOT").replace(os.path.relpath(root), "ROOT")


def call(backend: LocalDataBackend, root: str, method: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return plain(getattr(backend, method)(*arguments), root)
    except Exception as error:
        return plain(error, root)


def serve(backend: Any, root: str, pipe: Any) -> None:
    """A child that rebuilds its backend from the representation, as upstream's conditioning workers do."""
    representation = pickle.loads(pickle.dumps(backend.get_instance_representation()))
    rebuilt = from_instance_representation(representation)
    assert type(rebuilt) is LocalDataBackend
    while (order := pipe.recv()) is not None:
        pipe.send(call(rebuilt, root, *order))


class Side:
    """One tree, the backend on it, and a child process with its own backend on the same tree."""

    def __init__(self, root: Path, backend: LocalDataBackend) -> None:
        self.root, self.backend = root, backend
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.child = context.Process(target=serve, args=(backend, str(root), theirs), daemon=True)
        self.child.start()

    def run(self, where: str, method: str, arguments: tuple[Any, ...]) -> Any:
        if where == "process":
            self.pipe.send((method, arguments))
            return self.pipe.recv()
        if where == "here":
            return call(self.backend, str(self.root), method, arguments)
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(call(self.backend, str(self.root), method, arguments)))
        thread.start()
        thread.join()
        return results[0]

    def close(self) -> None:
        self.pipe.send(None)
        self.child.join()


places = st.sampled_from(["here", "thread", "process"])
names = st.sampled_from(FILES + OTHER)
spellings = st.sampled_from((SPELLINGS[0],) * 6 + SPELLINGS)
data = st.sampled_from([b"bytes", "text", {"x": torch.ones(2)}, torch.zeros(3), Image.new("RGB", (2, 2)), 7])


class Differential(RuleBasedStateMachine):
    compression: str | None = None

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="differential-"))
        self.sides = []
        for name in ("lcl", "mem"):
            root = self.directory / name
            make_tree(root)
            options = {"compression": self.compression, "num_workers": 2}
            backend = (
                LocalDataBackend(None, "x") if name == "lcl" else GH200InMemoryBackend(None, "x", False, root, options)
            )
            self.sides.append(Side(root, backend))

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            for side in self.sides:
                side.close()
            shutil.rmtree(self.directory)

    def same(self, where: str, method: str, make: Any, in_order: bool = True) -> None:
        local, ours = (side.run(where, method, make(side.root)) for side in self.sides)
        if not in_order:
            # A file system lists a directory in any order it likes, two equal directories in two.
            local, ours = (
                [(directory, sub, sorted(files)) for directory, sub, files in sorted(side)] for side in (local, ours)
            )
        # pytest shows no values for a helper's assertion, and hypothesis none for a failure it cannot repeat.
        assert ours == local, (where, method, make(Path("ROOT")), f"local: {local!r:.600}", f"ours: {ours!r:.600}")

    @rule(where=places, name=names, spelling=spellings, as_path=st.booleans(), as_file=st.booleans())
    def read(self, where: str, name: str, spelling: str, as_path: bool, as_file: bool) -> None:
        def make(root: Path) -> tuple[Any, ...]:
            path = spelling.format(root=root, name=name, relative=os.path.relpath(root))
            return (Path(path) if as_path else path, as_file)

        self.same(where, "read", make)

    @rule(where=places, name=names, delete=st.booleans())
    def read_image(self, where: str, name: str, delete: bool) -> None:
        self.same(where, "read_image", lambda root: (f"{root}/{name}", delete))

    @rule(where=places, some=st.lists(names, max_size=4), delete=st.booleans())
    def read_image_batch(self, where: str, some: list[str], delete: bool) -> None:
        if delete:
            # Upstream deletes from several threads: of one file under two names, either may be found gone.
            some = list({LINKS.get(name, name): name for name in some}.values())
        self.same(where, "read_image_batch", lambda root: ([f"{root}/{name}" for name in some], delete))

    @rule(where=places, name=names, value=data, spelling=spellings)
    def write(self, where: str, name: str, value: Any, spelling: str) -> None:
        self.same(
            where, "write", lambda root: (spelling.format(root=root, name=name, relative=os.path.relpath(root)), value)
        )

    @rule(where=places, some=st.lists(names, max_size=3, unique=True))
    def write_batch(self, where: str, some: list[str]) -> None:
        # Upstream writes from several threads and, when one write fails, cancels those behind it that no thread has
        # begun: which ones is chance. A failing name at the end leaves nothing to chance.
        some = sorted(some, key=lambda name: (self.sides[0].root / name).is_dir())
        self.same(
            where, "write_batch", lambda root: ([f"{root}/{name}" for name in some], [name.encode() for name in some])
        )

    @rule(where=places, name=names, spelling=spellings)
    def delete(self, where: str, name: str, spelling: str) -> None:
        self.same(
            where, "delete", lambda root: (spelling.format(root=root, name=name, relative=os.path.relpath(root)),)
        )

    @rule(where=places, name=names, mode=st.sampled_from(["rb", "r", "w", "ab", "r+b", "x"]))
    def open_file(self, where: str, name: str, mode: str) -> None:
        self.same(where, "open_file", lambda root: (f"{root}/{name}", mode))

    @rule(
        where=places, name=names, method=st.sampled_from(["exists", "torch_load", "create_directory", "get_abs_path"])
    )
    def by_path(self, where: str, name: str, method: str) -> None:
        self.same(where, method, lambda root: (f"{root}/{name}",))

    @rule(where=places, name=names)
    def torch_save(self, where: str, name: str) -> None:
        self.same(where, "torch_save", lambda root: (torch.ones(2), f"{root}/{name}"))

    @rule(where=places, suffixes=st.sampled_from([["png", "jpg"], ["txt"], []]))
    def list_files(self, where: str, suffixes: list[str]) -> None:
        self.same(where, "list_files", lambda root: (suffixes, str(root)), in_order=False)


class Config:
    """As much of upstream's backend config as a builder looks at."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.id, self.instance_data_dir, self.config, self.compress_cache = "photos", str(root), config, False
