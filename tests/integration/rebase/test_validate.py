"""What a rebase does with the validation scripts: shows what they say, believes their exit code, keeps their lines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gh200_rebase.delivery import validate
from gh200_rebase.pages import checklist

SCRIPT = """\
echo "working on $GH200_FORK against $GH200_PRISTINE"
cat > "$2" <<'JSON'
{"scenarios": [{"name": "one", "verdict": "passed", "what": "all   well", "seconds": 1.6}]}
JSON
exit CODE
"""


def make(directory: Path, scripts: dict[str, str]) -> tuple[Any, Path, Path]:
    trees = [directory / "pristine", directory / "fork"]
    for tree in trees:
        training = tree / "simpletuner/helpers/training"
        training.mkdir(parents=True)
        for package in (training, training.parent, training.parent.parent):
            (package / "__init__.py").touch()
        (training / "trainer.py").touch()
    (directory / "scripts").mkdir()
    for name, text in scripts.items():
        (directory / "scripts" / name).write_text(text)
    return SimpleNamespace(root=directory, build=directory / "build"), *trees


def test_scripts_are_shown_as_they_run_and_their_scenarios_kept(tmp_path: Path, capfd: Any) -> None:
    good, bad = SCRIPT.replace("CODE", "0"), SCRIPT.replace("CODE", "3")
    project, pristine, fork = make(tmp_path, {"test_gh200_features.sh": good, "test_combined_features.sh": bad})
    smoke, passed, failed = validate.validate(project, pristine, fork)
    assert smoke.ok and smoke.name == "smoke test of the fork"
    assert passed.ok and passed.shown == ("passed one (2 s): all   well",)
    assert not failed.ok and failed.verdict == "failed with exit code 3" and "working on" in failed.tail
    assert f"  working on {fork} against {pristine}" in capfd.readouterr().out
    assert checklist._outcome_lines(passed).splitlines() == [
        "`scripts/test_gh200_features.sh`: passed, 0 s",
        "  - passed one (2 s): all well",
    ]


def test_a_script_that_dies_early_has_no_scenarios(tmp_path: Path) -> None:
    project, pristine, fork = make(tmp_path, {"test_upstream_features.sh": "exit 2\n"})
    stale = tmp_path / "build/validation/test_upstream_features.json"
    stale.parent.mkdir(parents=True)
    stale.write_text('{"scenarios": [{"name": "old", "verdict": "passed", "what": "x", "seconds": 1}]}')
    outcome = validate.validate(project, pristine, fork)[1]
    assert not outcome.ok and outcome.shown == ()
