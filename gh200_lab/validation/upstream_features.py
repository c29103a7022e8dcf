"""Shows that upstream's features work in the fork as they do without it: its own tests, and real exercises."""

from __future__ import annotations

import argparse
import sys
import time

from ..place import Place
from ..scenario import Scenario, main, parser
from .upstream_probes import attention, audio, manual_validation
from .upstream_run import Limits
from .upstream_select import all_test_files, files_saying, files_testing, of_one_model
from .upstream_tests import CHUNK, TestRunPlan, compare
from .upstream_trees import both_trees, overridden_modules, patched_modules

DESCRIPTION = """\
Runs upstream's own tests on the pristine tree and on the fork and compares them test by test: the fork may not lose
one. Then selects attention backends, asks for manual validations and loads audio through upstream's code in both.

Without options: the tests of every module that is patched or overridden, but for those of single models, and all three parts.

  scripts/test_upstream_features.sh                  minutes
  scripts/test_upstream_features.sh --attention      one part
  scripts/test_upstream_features.sh --full           all of upstream's tests, hours; goes on where it was interrupted

Results are kept in build/validation/upstream and used again while the tree, the test and the packages are the same.
exit code: 0 nothing failed, 1 something did, 2 there is no fork or a wrong argument"""

STARTED = time.time()
PARTS = ("attention", "manual-validation", "audio")
ATTENTION = ("simpletuner.helpers.training.attention_backend",)
AUDIO = ("simpletuner.helpers.audio", "simpletuner.helpers.audio.load")


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The parsed command line."""
    made = parser(DESCRIPTION)
    made.prog = "scripts/test_upstream_features.sh"
    made.add_argument(
        "--full", action="store_true", help="all of upstream's tests, not only those of patched and overridden modules"
    )
    made.add_argument("--attention", action="store_true", help="attention backends: their tests, and each one selected")
    made.add_argument(
        "--manual-validation", action="store_true", help="manual validation: its tests, and the signal file"
    )
    made.add_argument("--audio", action="store_true", help="audio: its tests, and an audio file loaded")
    made.add_argument("--jobs", type=_above_zero, default=2, metavar="N", help="test processes at a time (2)")
    made.add_argument("--chunk", type=_above_zero, default=CHUNK, metavar="N", help=f"test files per process ({CHUNK})")
    made.add_argument("--test-seconds", type=_above_zero, default=300, metavar="N", help="time limit of one test (300)")
    made.add_argument("--fresh", action="store_true", help="do not use results of earlier runs")
    return made.parse_args(arguments)


def _above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def scenarios(chosen: argparse.Namespace) -> list[Scenario]:
    """Those of the parts asked for; without a choice, all."""
    parts = [part for part in PARTS if getattr(chosen, part.replace("-", "_"))]
    own = [] if parts and not chosen.full else [Scenario("upstream-tests", "system", _own_tests)]
    return own + [scenario for part in parts or PARTS for scenario in _OF_PART[part]]


def _own_tests(place: Place, chosen: argparse.Namespace) -> str:
    trees = both_trees(place)
    if chosen.full:
        return compare(place, all_test_files(trees.pristine), _plan(chosen), "all-tests")
    found = files_testing(trees.pristine, patched_modules(trees) | overridden_modules(trees))
    files = [file for file in found if not of_one_model(trees.pristine, file)]
    said = compare(place, files, _plan(chosen), "upstream-tests")
    return said + f"; {len(found) - len(files)} files that test one model each are left for --full"


def _attention_tests(place: Place, chosen: argparse.Namespace) -> str:
    return compare(place, files_testing(both_trees(place).pristine, ATTENTION), _plan(chosen), "attention-tests")


def _manual_validation_tests(place: Place, chosen: argparse.Namespace) -> str:
    files = files_saying(both_trees(place).pristine, "manual_validation")
    return compare(place, files, _plan(chosen), "manual-validation-tests")


def _audio_tests(place: Place, chosen: argparse.Namespace) -> str:
    return compare(place, files_testing(both_trees(place).pristine, AUDIO), _plan(chosen), "audio-tests")


def _plan(chosen: argparse.Namespace) -> TestRunPlan:
    since = STARTED if chosen.fresh else 0.0
    return TestRunPlan(chosen.jobs, chosen.chunk, Limits(test=chosen.test_seconds), since, chosen.keep)


_OF_PART = {
    "attention": (
        Scenario("attention-tests", "system", _attention_tests),
        Scenario("attention-selection", "integration", lambda place, _: attention(place)),
    ),
    "manual-validation": (
        Scenario("manual-validation-tests", "system", _manual_validation_tests),
        Scenario("manual-validation-signal", "integration", lambda place, _: manual_validation(place)),
    ),
    "audio": (
        Scenario("audio-tests", "system", _audio_tests),
        Scenario("audio-loading", "integration", lambda place, _: audio(place)),
    ),
}


if __name__ == "__main__":
    asked = options()
    sys.exit(main(scenarios(asked), asked))
