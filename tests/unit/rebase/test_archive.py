"""Archives: the good ones land exactly, the hostile and broken ones leave nothing behind."""

from __future__ import annotations

import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from pypi_simple import DistributionPackage

from gh200_rebase.errors import Rejected
from gh200_rebase.upstream import archive, registry
from gh200_rebase.upstream.archive import extract, read_members


def entry(name: str, data: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, b"", type=kind, linkname=target)


def pack(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return path


def reject(source: Path, directory: Path) -> Rejected:
    before = sorted(directory.rglob("*"))
    with pytest.raises(Rejected) as caught:
        extract(source, directory / "out")
    assert sorted(directory.rglob("*")) == before
    return caught.value


def test_unpacks_without_the_top_directory_and_keeps_the_exec_bit(tmp_path: Path) -> None:
    source = pack(
        tmp_path / "a.tar.gz",
        entry("top/ä b.txt", b"\r\n", mode=0o600),
        entry("top/run", b"#!", mode=0o4777),
        link("top/sub/near", "../run"),
        link("top/hard", "top/run", tarfile.LNKTYPE),
    )
    extract(source, tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "ä b.txt").read_bytes() == b"\r\n"
    assert [oct((out / name).stat().st_mode & 0o7777) for name in ("ä b.txt", "run")] == ["0o644", "0o755"]
    assert (out / "sub/near").readlink() == Path("../run") and (out / "hard").read_bytes() == b"#!"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar.gz", "out"]
    assert read_members(source) == {"ä b.txt": b"\r\n", "run": b"#!"}


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([entry("/etc/x")], "absolute"),
        ([entry("top/../../x")], "'..'"),
        ([entry("top/a\\b")], "backslash"),
        ([entry("top/.Git/config")], ".git"),
        ([link("top/l", "/etc/passwd")], "outside"),
        ([link("top/l", "../x")], "outside"),
        ([link("top/l", "a/../../x")], "outside"),
        ([link("top/l", "../../x", tarfile.LNKTYPE)], "outside"),
        ([link("top/here", "."), link("top/l", "here/../../x")], "outside"),
        ([link("top/d", "e"), entry("top/d/f")], "shares"),
        ([entry("top/dev", b"", type=tarfile.CHRTYPE)], "neither"),
        ([entry("top/pipe", b"", type=tarfile.FIFOTYPE)], "neither"),
        ([entry("top/A"), entry("top/a")], "case"),
        ([entry("top/D/x"), entry("top/d/y")], "case"),
        ([entry("top/\u00e9"), entry("top/e\u0301")], "composed"),
        ([entry("top/a"), entry("top/a")], "shares"),
        ([entry("top/a"), entry("top/a/b")], "shares"),
        ([entry("top/d/f"), link("top/d", "e")], "shares"),
    ],
)
def test_a_hostile_member_is_named_and_nothing_is_left(
    tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]], reason: str
) -> None:
    source = pack(tmp_path / "a.tar.gz", entry("top/ok"), *entries)
    error = reject(source, tmp_path)
    assert reason in error.why and repr(entries[-1][0].name) in error.what
    with pytest.raises(Rejected):
        read_members(source)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pack(tmp_path / "a.tar.gz", *(entry(f"top/{i}", b"0" * 100) for i in range(20)))
    monkeypatch.setattr(archive, "MAX_BYTES", 1000)
    assert "'top/10'" in reject(source, tmp_path).what
    monkeypatch.setattr(archive, "MAX_MEMBERS", 5)
    assert "'top/5'" in reject(source, tmp_path).what


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[: len(b) // 2], lambda b: b"not an archive", lambda b: b"", lambda b: b[:40] + bytes(40) + b[80:]],
)
def test_a_damaged_archive(tmp_path: Path, damage: object) -> None:
    source = pack(tmp_path / "a.tar.gz", *(entry(f"top/{i}", bytes(range(256)) * i) for i in range(20)))
    source.write_bytes(damage(source.read_bytes()))  # type: ignore[operator]
    assert "damaged" in reject(source, tmp_path).what


def test_a_zip_is_an_archive_nowhere(tmp_path: Path) -> None:
    """The matrix reads archives without unpacking them: a format one of both knows would pass here and fail there."""
    source = tmp_path / "a.zip"
    with zipfile.ZipFile(source, "w") as bundle:
        bundle.writestr("top/a", b"data")
    assert "damaged" in reject(source, tmp_path).what
    with pytest.raises(Rejected, match="damaged"):
        read_members(source)
    listed = DistributionPackage(
        filename="simpletuner-9.9.9.zip", project="simpletuner", version="9.9.9", package_type="sdist", url="https://x.invalid/a.zip",
        digests={}, requires_python=None, has_sig=None,
    )  # fmt: skip
    assert registry._release(listed) is None
    assert registry._release(replace(listed, filename="simpletuner-9.9.9.tar.gz")) is not None


def test_a_hard_link_that_leads_nowhere(tmp_path: Path) -> None:
    source = pack(tmp_path / "a.tar.gz", entry("top/a"), link("top/hard", "top/gone", tarfile.LNKTYPE))
    assert "gone" in reject(source, tmp_path).why


def test_a_path_thousands_of_directories_deep(tmp_path: Path) -> None:
    source = pack(tmp_path / "a.tar.gz", entry("/".join(["top", *["d"] * 3000, "file"])))
    assert "directories deep" in reject(source, tmp_path).why
