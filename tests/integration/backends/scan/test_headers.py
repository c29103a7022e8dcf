"""The header reader beside PIL: plain, turned, odd and rotten images; and the processes that run it."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from simpletuner.gh200 import image_headers
from simpletuner.gh200.backends.scan import worker_pool
from simpletuner.gh200.backends.scan.worker_pool import HeaderPool
from simpletuner.gh200.errors import GH200Error

pytestmark = pytest.mark.filterwarnings("ignore")


def by_pil(data: bytes) -> tuple[tuple[int, int], str | None] | None:
    """What upstream asks PIL for an image's size, in the same words."""
    with warnings.catch_warnings(action="ignore"):
        try:
            with Image.open(io.BytesIO(data)) as image:
                (width, height), turned = image.size, image.getexif().get(0x0112) in (5, 6, 7, 8)
                return ((height, width) if turned else (width, height)), image.format
        except Exception:
            return None


def ours(data: bytes) -> tuple[tuple[int, int], str | None] | None:
    found = image_headers.header_of_bytes(data)
    assert (found.size is None) == (found.problem is not None)
    return (found.size, found.format) if found.size is not None else None


def image(rng: random.Random) -> bytes:
    kind = rng.choice(["JPEG", "JPEG", "PNG", "PNG", "WEBP", "WEBP", "GIF", "BMP", "TIFF"])
    modes = {"JPEG": ["RGB", "L", "CMYK"], "WEBP": ["RGB", "RGBA"], "PNG": ["RGB", "RGBA", "L", "P", "1"]}.get(
        kind, ["RGB"]
    )
    image = Image.new("RGB", (rng.randint(1, 300), rng.randint(1, 300)), (rng.randint(0, 255), 9, 200)).convert(
        rng.choice(modes)
    )
    more: dict[str, object] = {}
    if kind in ("JPEG", "PNG", "WEBP"):
        if rng.random() < 0.6:
            exif = Image.Exif()
            exif[0x010F] = "maker"
            if rng.random() < 0.8:
                exif[0x0112] = rng.randint(0, 9)
            more["exif"] = exif
        if rng.random() < 0.2:
            more["icc_profile"] = rng.randbytes(rng.choice([100, 70_000]))
    if kind in ("JPEG", "WEBP") and rng.random() < 0.2:
        more["xmp"] = b'<x tiff:Orientation="%d"/>' % rng.randint(1, 8)
    if kind == "JPEG":
        more |= {"progressive": rng.random() < 0.5, "quality": rng.choice([1, 50, 95])}
    if kind == "WEBP":
        more["lossless"] = rng.random() < 0.5
    if kind == "PNG":
        text = PngImagePlugin.PngInfo()
        if rng.random() < 0.4:
            text.add_text("parameters", "words " * 200, zip=rng.random() < 0.3)
        if rng.random() < 0.2:
            text.add_itxt("parameters", "wörds " * 200)
        more["pnginfo"] = text
    target = io.BytesIO()
    image.save(target, kind, **more)
    return target.getvalue()


def rotten(rng: random.Random, data: bytes) -> bytes:
    damaged, how = bytearray(data), rng.random()
    if how < 0.3:
        return bytes(damaged[: rng.randrange(len(damaged))])
    if how < 0.8:
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(min(len(damaged), rng.choice([30, 200, 100_000])))] = rng.randrange(256)
    else:
        place = rng.randrange(len(damaged))
        damaged[place:place] = rng.randbytes(rng.randint(1, 10))
    return bytes(damaged)


def test_headers_are_what_pil_says_of_plain_turned_and_odd_images() -> None:
    rng = random.Random(1)
    images = [image(rng) for _ in range(300)]
    assert [ours(data) for data in images] == [by_pil(data) for data in images]


def test_headers_of_plain_jpegs_need_no_pil_and_no_png_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {}
    for kind in ("JPEG", "PNG"):
        target = io.BytesIO()
        Image.new("RGB", (30, 20)).save(target, kind)
        made[kind] = target.getvalue()
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda self: pytest.fail("decoded"))
    assert ours(made["PNG"]) == ((30, 20), "PNG")
    monkeypatch.setattr(image_headers, "_pillow", lambda: pytest.fail("asked"))
    assert ours(made["JPEG"]) == ((30, 20), "JPEG")


def test_headers_of_a_png_with_its_orientation_behind_the_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    target = io.BytesIO()
    Image.new("RGB", (30, 20)).save(target, "PNG", exif=exif)
    data = target.getvalue()
    place, end = data.index(b"eXIf") - 4, data.index(b"IDAT") - 4
    moved = data[:place] + data[end:-12] + data[place:end] + data[-12:]
    assert ours(moved) == by_pil(moved) == ((20, 30), "PNG")


def test_headers_of_rotten_images_are_what_pil_says() -> None:
    rng = random.Random(2)
    images = [image(rng) for _ in range(100)]
    damaged = [rotten(rng, rng.choice(images)) for _ in range(2000)]
    assert [data for data in damaged if ours(data) != by_pil(data)] == []


def test_a_png_whose_body_is_rotten_is_a_problem_as_for_pil_and_a_jpeg_is_not() -> None:
    noise = Image.frombytes("RGB", (64, 64), random.Random(3).randbytes(64 * 64 * 3))
    for kind, readable in (("PNG", False), ("JPEG", True)):
        target = io.BytesIO()
        noise.save(target, kind)
        data = bytearray(target.getvalue())
        data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
        assert (ours(bytes(data)) is not None) is readable, kind
        assert ours(bytes(data)) == by_pil(bytes(data)), kind


def test_what_is_no_image_is_named_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "directory.png").mkdir()
    answers = {
        name: image_headers.header(str(tmp_path / name))
        for name in ("pipe.png", "empty.png", "directory.png", "none.png")
    }
    assert all(found.size is None and found.problem for found in answers.values()), answers
    assert answers["none.png"].problem == "cannot be read: No such file or directory"
    assert image_headers.header("with\0zero").problem


def make(directory: Path, count: int) -> list[str]:
    for number in range(7):
        Image.new("RGB", (10 + number, 20)).save(directory / f"original-{number}.jpg")
    paths = [str(directory / f"{number:05}.jpg") for number in range(count)]
    for number, path in enumerate(paths):
        os.link(directory / f"original-{number % 7}.jpg", path)
    return paths


def test_workers_answer_in_order_and_survive_the_death_of_one(tmp_path: Path) -> None:
    paths = make(tmp_path, 3000)
    expected = [(10 + number % 7, 20) for number in range(3000)]
    batches = [paths[start : start + 500] for start in range(0, 3000, 500)]
    readers = HeaderPool(2)
    with ThreadPoolExecutor(4) as threads:
        sizes = [found.size for batch in threads.map(readers.read, batches) for found in batch]
        assert sizes == expected and len(readers._started) == 2
        readers._started[0].kill()
        sizes = [found.size for batch in threads.map(readers.read, batches) for found in batch]
        assert sizes == expected
    readers.close()
    assert all(worker.poll() is not None for worker in readers._started), "no process is left behind"


def test_few_headers_need_no_process(tmp_path: Path) -> None:
    readers = HeaderPool(2)
    assert len(readers.read(make(tmp_path, worker_pool.TOO_FEW))) == worker_pool.TOO_FEW and not readers._started


def test_workers_that_always_die_are_an_error_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)")
    monkeypatch.setattr(image_headers, "__file__", str(broken))
    with pytest.raises(GH200Error, match="have died") as caught:
        HeaderPool(2).read(make(tmp_path, 200))
    assert "fast_start" in caught.value.fix


def test_a_worker_imports_neither_torch_nor_upstream_nor_pil_for_plain_jpegs(tmp_path: Path) -> None:
    (path,) = make(tmp_path, 1)
    code = (
        "import runpy, sys; read = runpy.run_path(sys.argv[1])['header']; assert read(sys.argv[2])[0] == (10, 20);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(image_headers.__file__), path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"torch", "numpy", "PIL", "simpletuner"} & set(done.stdout.split())


@pytest.mark.parametrize("dies", ["before it asks", "before its answer"])
def test_a_worker_whose_scan_was_killed_ends_in_silence(tmp_path: Path, dies: str) -> None:
    command = [sys.executable, "-I", "-S", str(image_headers.__file__)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None and worker.stderr is not None
        if dies == "before its answer":
            worker.stdout.close()
            image_headers.send(worker.stdin, make(tmp_path, 3))
        worker.stdin.close()
        assert worker.stderr.read() == b""
