"""test_upstream_features.sh: which tests of upstream it chooses, how it compares them, what it survives."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest

from gh200_lab.place import ROOT, Place
from gh200_lab.scenario import Failed
from gh200_lab.validation.upstream_cache import claim_numbers
from gh200_lab.validation.upstream_features import options, scenarios
from gh200_lab.validation.upstream_probes import audio, manual_validation
from gh200_lab.validation.upstream_run import Limits, read_report
from gh200_lab.validation.upstream_select import all_test_files, files_saying, files_testing, of_one_model
from gh200_lab.validation.upstream_tests import TestRunPlan, compare, losses
from gh200_lab.validation.upstream_trees import Trees, both_trees, digest, mirror, overridden_modules, patched_modules

PACKAGE = {
    "simpletuner/__init__.py": "__version__ = '1.2'\n",
    "simpletuner/helpers/__init__.py": "",
    "simpletuner/helpers/adder.py": "NAMES = ['one', 'two']\ndef add(a, b):\n    return a + b\n",
    "simpletuner/helpers/other.py": "WHICH = 'pristine'\n",
}
ADDER = "from simpletuner.helpers.adder import add\n"
QUICK = TestRunPlan(jobs=2, chunk=3, limits=Limits(test=20, start=60, file=5, linger=1))


def write(tree: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A fork that changes nothing yet; tests change it."""
    made = Place(tmp_path / "fork", tmp_path / "pristine", tmp_path / "work")
    for tree in (made.fork, tmp_path / "pristine"):
        write(tree, PACKAGE)
    write(made.fork, {"simpletuner/helpers/other.py": "WHICH = 'fork'\n"})
    return made


def pristine(place: Place) -> Path:
    assert place.pristine is not None
    return place.pristine


def run(place: Place, plan: TestRunPlan = QUICK) -> str:
    return compare(place, all_test_files(pristine(place)), plan, "tests")


def rejected(place: Place, plan: TestRunPlan = QUICK) -> str:
    with pytest.raises(Failed) as problem:
        run(place, plan)
    return str(problem.value)


def test_patched_modules_are_those_that_differ(place: Place) -> None:
    write(place.fork, {"simpletuner/gh200/__init__.py": "", "simpletuner/helpers/adder.py": "x = 1\n"})
    found = patched_modules(both_trees(place))
    assert found == {"simpletuner.helpers.adder", "simpletuner.helpers.other"}


def test_overridden_modules_are_those_that_a_patch_of_the_fork_declares(place: Place) -> None:
    assert overridden_modules(both_trees(place)) == frozenset()
    head = 'number = 1\ntopic = "a"\nsubject = "s"\nwhy = "w"\nrisk = "low"\n'
    entry = '[[expect]]\nfile = "simpletuner/helpers/{}.py"\nname = "f"\nwhy = "w"\n'
    declared = entry.format("adder") + 'stands_for = ["f"]\n'
    write(place.fork, {"patches/01-a.toml": head + declared + entry.format("other")})
    assert overridden_modules(both_trees(place)) == {"simpletuner.helpers.adder"}


SELECTED = {
    "import simpletuner.helpers.adder": True,
    "import simpletuner.helpers.adder as it, os": True,
    "from simpletuner.helpers.adder import add": True,
    "from simpletuner.helpers import adder": True,
    "def test():\n    from simpletuner.helpers import adder": True,
    "patch('simpletuner.helpers.adder.add')": True,
    "patch('simpletuner.helpers.adder')": True,
    "from simpletuner.helpers import other": False,
    "from simpletuner.helpers.other import adder": False,
    "patch('simpletuner.helpers.adderly.x')": False,
    "# simpletuner.helpers.adder": False,
    "import simpletuner": False,
    "from simpletuner.helpers.adder import (": False,
}


@pytest.mark.parametrize("text", SELECTED)
def test_selection_of_test_files(place: Place, text: str) -> None:
    write(pristine(place), {"tests/test_it.py": text, "tests/helper.py": "import simpletuner.helpers.adder"})
    assert bool(files_testing(pristine(place), {"simpletuner.helpers.adder"})) is SELECTED[text]


def test_selection_of_a_package_is_not_that_of_all_below_it(place: Place) -> None:
    texts = {
        "below": "import simpletuner.helpers.adder",
        "itself": "from simpletuner import __version__",
        "word": "'simpletuner'",
    }
    write(pristine(place), {f"tests/deep/test_{name}.py": text for name, text in texts.items()})
    assert files_testing(pristine(place), {"simpletuner"}) == ["tests/deep/test_itself.py"]
    assert files_saying(pristine(place), "__version__") == ["tests/deep/test_itself.py"]


def test_tests_of_one_model_are_known_by_name(place: Place) -> None:
    write(
        pristine(place), {"simpletuner/helpers/models/sana/model.py": "", "simpletuner/helpers/models/registry.py": ""}
    )
    names = ["test_sana.py", "test_sana_shapes.py", "test_sanavideo.py", "test_registry.py", "test_trainer.py"]
    found = [name for name in names if of_one_model(pristine(place), f"tests/{name}")]
    assert found == ["test_sana.py", "test_sana_shapes.py"]


def test_losses_are_what_passed_and_no_longer_does() -> None:
    before = {
        "f": {"a": "passed", "b": "passed", "c": "passed", "d": "failed", "e": "skipped", "g": "passed"},
        "h": {"i": "passed"},
    }
    after = {"f": {"a": "passed", "b": "failed", "c": "skipped", "d": "error", "e": "failed", "new": "failed"}}
    assert losses(before, after) == {
        "f::b": "passed -> failed",
        "f::c": "passed -> skipped",
        "f::g": "passed -> missing",
        "h::i": "passed -> missing",
    }


def test_nothing_lost(place: Place) -> None:
    tests = ADDER + "import pytest\ndef test_add(): assert add(1, 2) == 3\ndef test_bad(): assert add(1, 1) == 3\n"
    tests += "@pytest.mark.skip\ndef test_skipped(): pass\n"
    write(pristine(place), {"tests/test_a.py": tests, "tests/test_broken.py": "import no_such_module"})
    before = {tree: sorted(tree.rglob("*")) for tree in (place.fork, pristine(place))}
    said = run(place)
    assert "2 files, the fork loses none; 4 tests: 1 pass on both, 1 skipped, 2 fail on the pristine tree" in said
    assert before == {tree: sorted(tree.rglob("*")) for tree in (place.fork, pristine(place))}


def test_every_kind_of_loss_is_named(place: Place) -> None:
    write(place.fork, {"simpletuner/helpers/adder.py": "NAMES = ['one']\ndef add(a, b):\n    return a - b\n"})
    write(
        pristine(place),
        {
            "tests/test_fails.py": ADDER
            + "def test_add(): assert add(1, 2) == 3\nclass TestMore:\n    def test_0(self): assert add(1, 0) == 1\n",
            "tests/test_skips.py": ADDER
            + "import pytest\n@pytest.mark.skipif(add(1, 1) == 0, reason='x')\ndef test_it(): pass\n",
            "tests/test_misses.py": "import pytest\nfrom simpletuner.helpers.adder import NAMES\n"
            "@pytest.mark.parametrize('name', NAMES)\ndef test_it(name): pass\n",
            "tests/test_collects.py": ADDER + "1 / add(1, 1)\ndef test_it(): pass\n",
        },
    )
    said = rejected(place)
    assert "the fork loses 4 tests" in said
    assert "tests/test_fails.py::test_add: passed -> failed" in said
    assert "tests/test_skips.py::test_it: passed -> skipped" in said
    assert "tests/test_misses.py::test_it[two]: passed -> missing" in said
    assert "tests/test_collects.py::test_it: passed -> missing" in said
    assert "test_0" not in said
    details = json.loads((place.work / "upstream/tests.json").read_text())
    assert details["counts"]["pass on both"] == 2 and len(details["lost"]) == 4


def counted(log: Path) -> str:
    """A line for a test file that notes each time it runs, and in which tree."""
    return (
        f"from simpletuner.helpers.other import WHICH\nopen({str(log)!r}, 'a').write(__name__ + ' ' + WHICH + '\\n')\n"
    )


def test_a_flaky_test_is_run_again_and_said(place: Place, tmp_path: Path) -> None:
    """It fails in the fork the first time only; its steady neighbour fails there always."""
    log = tmp_path / "log"
    flaky = counted(log) + f"def test_it(): assert WHICH == 'pristine' or open({str(log)!r}).read().count('fork') > 1\n"
    write(pristine(place), {"tests/test_flaky.py": flaky})
    said = run(place)
    assert "the fork loses none" in said and "unstable, not counted: tests/test_flaky.py::test_it" in said
    steady = "from simpletuner.helpers.other import WHICH\ndef test_it(): assert WHICH == 'pristine'\n"
    write(pristine(place), {"tests/test_steady.py": steady})
    said = rejected(place)
    assert "loses 1 tests" in said and "tests/test_steady.py::test_it: passed -> failed" in said


def test_a_process_that_dies_costs_only_its_own_file(place: Place) -> None:
    dies = (
        "import os\nfrom simpletuner.helpers.other import WHICH\ndef test_it():\n    if WHICH == 'fork': os._exit(7)\n"
    )
    fine = {f"tests/test_fine_{number}.py": "def test_it(): pass\n" for number in range(2)}
    write(pristine(place), {"tests/test_dies.py": dies} | fine)
    said = rejected(place)
    assert "loses 1 tests" in said and "tests/test_dies.py::test_it: passed -> missing" in said
    details = json.loads((place.work / "upstream/tests.json").read_text())
    assert details["unfinished"] == {"tests/test_dies.py on the fork tree": "died with exit code 7"}
    assert details["counts"]["pass on both"] == 2


def test_what_takes_too_long_is_reported(place: Place) -> None:
    slow = "import time\ndef test_slow(): time.sleep(600)\ndef test_quick(): pass\n"
    write(pristine(place), {"tests/test_slow.py": slow, "tests/test_stuck.py": "import time\ntime.sleep(600)\n"})
    said = run(place, TestRunPlan(chunk=1, limits=Limits(test=2, start=9, file=1, linger=1)))
    assert "tests/test_stuck.py on the fork tree (timed out after 10 s)" in said
    assert "tests/test_slow.py::test_slow on the pristine tree (timed out)" in said
    assert "1 pass on both" in said


def test_a_runner_that_does_not_leave_still_counts(place: Place) -> None:
    lingers = "import threading, time\ndef test_it(): threading.Thread(target=time.sleep, args=(600,)).start()\n"
    write(pristine(place), {"tests/test_lingers.py": lingers})
    assert "1 pass on both" in run(place)


def test_results_are_used_again_while_nothing_changed(place: Place, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def ran() -> list[str]:
        lines = sorted(log.read_text().splitlines()) if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    one, two = "tests/test_one.py", "tests/test_two.py"
    write(pristine(place), {one: counted(log) + "def test_it(): pass\n", two: counted(log) + "def test_it(): pass\n"})
    # As after an interruption: half of the files are done.
    compare(place, [one], QUICK, "half")
    assert ran() == ["test_one fork", "test_one pristine"]
    assert "2 results of an earlier run" in run(place)
    assert ran() == ["test_two fork", "test_two pristine"]
    assert "4 results of an earlier run" in run(place) and ran() == []
    write(place.fork, {"simpletuner/helpers/adder.py": "changed = True\n", "docs/GUIDE.md": "ours\n"})
    run(place)
    assert ran() == ["test_one fork", "test_two fork"]
    write(place.fork, {"docs/GUIDE.md": "ours, changed\n"})
    run(place)
    assert ran() == []
    write(pristine(place), {two: counted(log) + "def test_it(): assert 1\n"})
    run(place)
    assert ran() == ["test_two fork", "test_two pristine"]
    run(place, TestRunPlan(limits=QUICK.limits, since=time.time() + 1))
    assert len(ran()) == 4


def test_a_loss_stays_one_on_the_second_run(place: Place) -> None:
    write(place.fork, {"simpletuner/helpers/adder.py": "def add(a, b): return 0\n"})
    write(pristine(place), {"tests/test_a.py": ADDER + "def test_add(): assert add(1, 2) == 3\n"})
    assert rejected(place) == rejected(place)


def test_tests_that_do_not_run_are_no_pass(place: Place) -> None:
    assert "upstream's tests do not run" in rejected(place)
    write(pristine(place), {"tests/test_broken.py": "import no_such_module\n"})
    assert "upstream's tests do not run" in rejected(place)


def test_the_checkout_around_the_copies_has_no_say(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place.work.parent, {"pyproject.toml": "[tool.pytest.ini_options]\naddopts = ['--no-such-option']\n"})
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("SIMPLETUNER_SETTING", "1")
    text = "import os\ndef test_it(): assert not [name for name in os.environ if name.startswith('SIMPLETUNER_')]\n"
    write(pristine(place), {"tests/test_a.py": text})
    assert "1 pass on both" in run(place)
    write(pristine(place), {"setup.cfg": "[tool:pytest]\npython_functions = check_*\n"})
    write(place.fork, {"setup.cfg": "[tool:pytest]\npython_functions = check_*\n"})
    assert "do not run" in rejected(place)


def test_nothing_to_compare_with_is_a_failure(place: Place) -> None:
    with pytest.raises(Failed, match="no pristine upstream.*execute_gh200_rebase"):
        both_trees(Place(place.fork, None, place.work))
    write(place.fork, {"simpletuner/__init__.py": "__version__ = '1.3'\n"})
    with pytest.raises(Failed, match=r"pristine upstream is 1\.2, the fork is made from 1\.3"):
        both_trees(place)


def test_a_copy_is_made_whole_again(place: Place, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    write(pristine(place), {"tests/test_a.py": "a\n"})
    write(place.fork, {"tests/test_ours.py": "", "build/big": "", ".git/HEAD": "", "config/x.json": "{}"})
    mirror(place.fork, pristine(place), copy)
    write(
        copy, {"simpletuner/helpers/adder.py": "spoilt", "left/over.txt": "", "simpletuner/__pycache__/x.pyc": "kept"}
    )
    mirror(place.fork, pristine(place), copy)
    found = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert found == {*PACKAGE, "tests/test_a.py", "config/x.json", "simpletuner/__pycache__/x.pyc"}
    assert (copy / "simpletuner/helpers/adder.py").read_text() == PACKAGE["simpletuner/helpers/adder.py"]
    assert digest(place.fork, pristine(place)) != digest(pristine(place), pristine(place))


def test_two_runs_at_once_have_copies_of_their_own(tmp_path: Path) -> None:
    with ExitStack() as one, ExitStack() as other:
        assert claim_numbers(tmp_path, 2, one) == [0, 1]
        assert claim_numbers(tmp_path, 2, other) == [2, 3]
        one.close()
        assert claim_numbers(tmp_path, 1, one) == [0]


def test_a_report_that_was_cut_off_is_none(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert read_report(report, tmp_path, ["tests/test_a.py"]) is None
    report.write_text("<testsuites><testsuite><testcase classname='tests.test_a' name='x'/>")
    assert read_report(report, tmp_path, ["tests/test_a.py"]) is None
    report.write_text(
        "<testsuites><testcase classname='tests.test_a.T' name='x[&lt;A at 0x7f00aa11&gt;]'/></testsuites>"
    )
    assert read_report(report, tmp_path, ["tests/test_a.py"]) == {"tests/test_a.py": {"T::x[<A at 0x>]": "passed"}}


CHOICES: dict[str, list[str]] = {
    "": [
        "upstream-tests",
        "attention-tests",
        "attention-selection",
        "manual-validation-tests",
        "manual-validation-signal",
        "audio-tests",
        "audio-loading",
    ],
    "--audio": ["audio-tests", "audio-loading"],
    "--attention --manual-validation": [
        "attention-tests",
        "attention-selection",
        "manual-validation-tests",
        "manual-validation-signal",
    ],
    "--full --audio": ["upstream-tests", "audio-tests", "audio-loading"],
}


@pytest.mark.parametrize("line", CHOICES)
def test_options_choose_the_parts(line: str) -> None:
    assert [scenario.name for scenario in scenarios(options(line.split()))] == CHOICES[line]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gh200_lab.validation.upstream_features", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"} | environment,
        check=False,
        timeout=300,
    )


def test_the_command_from_end_to_end(place: Place, tmp_path: Path) -> None:
    trees = {"GH200_FORK": str(place.fork), "GH200_PRISTINE": str(pristine(place))}
    test = "from simpletuner.helpers.other import WHICH\ndef test_it(): assert WHICH in ('pristine', 'fork')\n"
    write(pristine(place), {"tests/test_other.py": test})
    done = command("--only", "upstream-tests", "--json", str(tmp_path / "out.json"), **trees)
    assert done.returncode == 0 and "1 passed, 0 failed" in done.stdout, done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["counts"]["passed"] == 1
    write(place.fork, {"simpletuner/helpers/other.py": "WHICH = 'wrong'\n"})
    done = command("--only", "upstream-tests", **trees)
    assert done.returncode == 1 and "tests/test_other.py::test_it: passed -> failed" in done.stdout


def test_the_command_rejects_what_it_cannot_do(tmp_path: Path) -> None:
    missing = command(GH200_FORK=str(tmp_path))
    assert missing.returncode == 2 and "no SimpleTuner tree" in missing.stderr and "fix:" in missing.stderr
    for arguments in (["--only", "nonsense"], ["--jobs", "0"], ["--test-seconds", "x"], ["--nonsense"]):
        assert command(*arguments).returncode == 2, arguments


FEATURES = {
    "simpletuner/helpers/audio.py": """\
        import io, wave, torch
        GAIN = 1.0
        def load_audio(source):
            stream = source if hasattr(source, "read") or isinstance(source, str) else io.BytesIO(source)
            with wave.open(stream, "rb") as audio:
                frames, rate = audio.readframes(audio.getnframes()), audio.getframerate()
            return torch.frombuffer(bytearray(frames), dtype=torch.int16).view(-1, 2).t() / 32768 * GAIN, rate
        """,
    "simpletuner/helpers/data_backend/__init__.py": "",
    "simpletuner/helpers/data_backend/local.py": """\
        class LocalDataBackend:
            def __init__(self, accelerator, id): pass
            def read(self, path): return open(path, "rb").read()
        """,
    "simpletuner/helpers/training/__init__.py": "",
    "simpletuner/helpers/training/trainer.py": """\
        class Trainer:
            def configure_webhook(self): pass
            def _consume_manual_validation_request(self): return self._manual_validation_consumer()
            def _consume_manual_checkpoint_request(self): return self._manual_checkpoint_consumer()
        """,
    "simpletuner/train.py": """\
        import json, os
        def consumer(key):
            path, seen = os.environ["SIMPLETUNER_ACCELERATE_SIGNAL_FILE"], 0
            def consume():
                nonlocal seen
                try:
                    wanted = json.load(open(path)).get(key, 0)
                except (OSError, ValueError):
                    return False
                seen, more = min(seen + 1, wanted), wanted > seen
                return more
            return consume
        def _run_training(trainer):
            trainer._manual_validation_consumer = consumer("manual_validation")
            trainer._manual_checkpoint_consumer = consumer("manual_checkpoint")
            trainer.configure_webhook()
        """,
}


def spoil(tree: Path, file: str, right: str, wrong: str) -> None:
    write(tree, {file: dedent(FEATURES[file]).replace(right, wrong)})


def test_manual_validation_is_compared_in_both_trees(place: Place) -> None:
    write(place.fork, FEATURES)
    write(pristine(place), FEATURES)
    assert "arrives once in both trees" in manual_validation(place)
    change = ("simpletuner/train.py", "seen + 1, wanted", "seen + 2, wanted")
    spoil(place.fork, *change)
    with pytest.raises(Failed, match="the fork differs from the pristine tree: two more and a checkpoint"):
        manual_validation(place)
    spoil(pristine(place), *change)
    with pytest.raises(Failed, match="two more and a checkpoint: .* instead of"):
        manual_validation(place)
    write(place.fork, {"simpletuner/train.py": "raise OSError('broken')"})
    with pytest.raises(Failed, match=r"ended with exit code 1 .*OSError: broken"):
        manual_validation(place)


def test_audio_is_compared_with_what_was_written(place: Place) -> None:
    write(place.fork, FEATURES)
    write(pristine(place), FEATURES)
    assert "the same samples in both trees from path, bytes, stream, data backend" in audio(place)
    for tree in (place.fork, pristine(place)):
        spoil(tree, "simpletuner/helpers/audio.py", "GAIN = 1.0", "GAIN = 0.5")
    with pytest.raises(Failed, match="audio comes out different"):
        audio(place)


def test_digests_and_trees_are_by_content(place: Place) -> None:
    same = Trees(pristine(place), pristine(place))
    assert not patched_modules(same)
    assert digest(same.fork, same.pristine) == digest(same.pristine, same.pristine)
