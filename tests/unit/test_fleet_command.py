"""`python -m simpletuner.gh200.stage`: datasets kept in RAM between runs, listed, dropped, and gone by themselves."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Rank

from simpletuner.gh200.datasets.command import config_sources, duration, main
from simpletuner.gh200.errors import GH200Error

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("temporary")]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "data/sub").mkdir(parents=True)
    for number in range(10):
        (tmp_path / f"data/sub/{number}.bin").write_bytes(os.urandom(1000))
    entries = [
        {"id": "inner", "type": "in_memory", "instance_data_dir": str(tmp_path / "data/sub")},
        {"id": "outer", "type": "in_memory", "instance_data_dir": str(tmp_path / "data")},
        {"id": "off", "type": "in_memory", "instance_data_dir": "/nowhere", "disabled": True},
        {"id": "text", "type": "local", "dataset_type": "text_embeds"},
    ]
    (tmp_path / "datasets.json").write_text(json.dumps(entries))
    (tmp_path / "config.json").write_text(json.dumps({"--data_backend_config": str(tmp_path / "datasets.json")}))
    return tmp_path / "config.json"


class Keeper:
    def __init__(self, config: Path, *more: str, **variables: str) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "SIMPLETUNER_SKIP_TORCH": "1"} | variables
        code = "import sys; from simpletuner.gh200.datasets.command import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(config), *more], env=environment, stdout=subprocess.PIPE, text=True
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if word in line:
                return
        raise AssertionError(f"ended with {self.process.wait()}")


@pytest.fixture
def keeper(config: Path) -> Iterator[Keeper]:
    kept = Keeper(config, "--for", "5m")
    kept.wait_for("held until")
    yield kept
    kept.process.kill()
    kept.process.wait()


def test_fleet_kept_a_run_attaches_and_goes_on_when_it_is_dropped(
    keeper: Keeper, config: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = config.parent / "data"
    run = Rank(root, delay=60)
    try:
        assert run.came(seconds=30)["files"] == 10
        assert main(["list"]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{root}: ")]
        assert line.startswith(f"{root}: 10 files, 10.0 KB") and f"kept by {keeper.process.pid} until" in line
        assert f"used by {run.pid}" in line
        # Other folders of this machine are none of a test's business.
        assert main(["drop", str(root)]) == 0 and f"dropped: {root}" in capsys.readouterr().out
        assert keeper.process.wait(20) == 0
        assert run.ask(f"read {root}/sub/1.bin")["data"] == (root / "sub/1.bin").read_bytes().hex()
    finally:
        run.end()
    assert main(["list"]) == 0 and str(root) not in capsys.readouterr().out
    assert not list(temporary.rglob("*.stage"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_fleet_kept_nothing_survives_the_end_of_the_keeper(
    keeper: Keeper, how: signal.Signals, capsys: pytest.CaptureFixture[str], temporary: Path
) -> None:
    keeper.process.send_signal(how)
    keeper.process.wait(20)
    assert main(["list"]) == 0 and str(temporary.parent) not in capsys.readouterr().out
    assert not list(temporary.rglob("*.stage"))


def test_fleet_kept_ends_by_itself(config: Path) -> None:
    kept = Keeper(config, "--for", "1s")
    began = time.monotonic()
    assert kept.process.wait(60) == 0 and time.monotonic() - began >= 1


def test_fleet_kept_a_folder_inside_another_comes_with_it(config: Path) -> None:
    (source,) = config_sources(config)
    assert source.dataset == "outer" and source.root == str(config.parent / "data")


def test_fleet_kept_drop_names_what_it_did_not_find(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drop", "/nowhere"]) == 1
    assert "/nowhere" in capsys.readouterr().out


def test_fleet_kept_a_bad_config_is_one_error_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(GH200Error, match="no dataset to hold"):
        config_sources(tmp_path / "none.json")
    for arguments in (["missing.json"], [str(tmp_path / "none.json")], ["list", "folder"], ["x", "--for", "soon"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2


def test_fleet_kept_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    data = Path(os.fsdecode(os.fsencode(tmp_path) + b"/data\xff"))
    data.mkdir()
    (data / "1.bin").write_bytes(b"x")
    entry = {"id": "x", "type": "in_memory", "instance_data_dir": str(data)}
    (tmp_path / "config.json").write_text(json.dumps({"datasets": [entry]}))
    with_strict_output = {"PYTHONIOENCODING": "utf-8:strict"}
    kept = Keeper(tmp_path / "config.json", "--for", "1m", **with_strict_output)
    try:
        kept.wait_for("held until")
        listed = Keeper(Path("list"), **with_strict_output)
        listed.wait_for("data\\udcff: 1 files")
        assert listed.process.wait(20) == 0
    finally:
        kept.process.kill()
        kept.process.wait()


def test_fleet_kept_durations() -> None:
    assert [duration(text) for text in ("8h", "30m", "1h30m", "1.5d", "2s")] == [28800, 1800, 5400, 129600, 2]
    for text in ("", "8", "h", "0s", "8h!", "-1h", "367d", "9" * 400 + "d"):
        with pytest.raises(argparse.ArgumentTypeError):
            duration(text)
