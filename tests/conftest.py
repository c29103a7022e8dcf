"""Which tests can run here: those of the fork need one that was built from this overlay, others a network."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from gh200_lab.checkout import see_this_checkout

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
FORK = ROOT / "build/fork"
FORK_PROBLEM = pytest.StashKey[str]()
OVERLAY = ("simpletuner/gh200", "simpletuner/helpers/data_backend/builders/in_memory.py")
SUFFIXES = (".py", ".html", ".js")
OPTIONAL = {"network": "needs the package index"}
# By directory; a test with a time limit of its own is marked performance instead.
LEVELS = {"unit": "unit", "integration": "integration", "docs": "integration", "e2e": "system", "golden": "system"}
FIX = "make it with ./execute_gh200_rebase.sh --skip-tests"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of the test's own, so that its processes share none with other tests."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, reason in OPTIONAL.items():
        parser.addoption(f"--{name}", action="store_true", help=f"also run the tests marked {name}: {reason}")
    parser.addoption("--fork", action="store_true", help="fail, rather than skip, when build/fork is missing or stale")


def pytest_configure(config: pytest.Config) -> None:
    problem = _fork_problem()
    if problem and config.getoption("--fork"):
        raise pytest.UsageError(f"--fork: {problem}")
    config.stash[FORK_PROBLEM] = problem
    if problem:
        see_this_checkout()
    else:
        _import_the_fork_lightly()


def _fork_problem() -> str:
    """Why the fork's tests cannot run for this checkout; empty when they can."""
    if not (FORK / "simpletuner/__init__.py").is_file():
        return f"there is no fork in build/fork; {FIX}"
    stale = sorted(_overlay_files(ROOT).items() ^ _overlay_files(FORK).items())
    return f"build/fork was made from another overlay ({stale[0][0]} differs); {FIX}" if stale else ""


def _import_the_fork_lightly() -> None:
    """Its overlay equals ours; upstream's own start-up code is for trainers, and takes ten seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMPLETUNER_SKIP_TORCH", "1")
        import_module("simpletuner")


def _overlay_files(root: Path) -> dict[str, bytes]:
    tops = [root / name for name in OVERLAY]
    found = (path for top in tops for path in ([top] if top.is_file() else top.rglob("*")))
    paths = [path for path in found if path.suffix in SUFFIXES]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _without_reason(items: list[pytest.Item]) -> list[str]:
    """Tests that are marked slow, and so left out of the default run, without a reason."""
    marked = ((item, mark) for item in items for mark in item.iter_markers("slow"))
    return sorted({item.nodeid for item, mark in marked if not str(mark.kwargs.get("reason", "")).strip()})


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skips a module that imports SimpleTuner itself where there is no current fork to import it from."""
    report = yield
    problem = collector.config.stash[FORK_PROBLEM]
    if problem and report.failed and "simpletuner.helpers" in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {problem}")
    return report


def _level(path: Path) -> str:
    return LEVELS.get(path.relative_to(TESTS).parts[0], "unit") if path.is_relative_to(TESTS) else "unit"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if silent := _without_reason(items):
        raise pytest.UsageError('pytest.mark.slow needs a reason="...": ' + ", ".join(silent))
    for item in items:
        if item.get_closest_marker("performance") is None:
            item.add_marker(_level(item.path))
        if item.path.is_relative_to(TESTS / "e2e") or item.get_closest_marker("fork") is not None:
            item.add_marker(pytest.mark.fork)
            if config.stash[FORK_PROBLEM]:
                item.add_marker(pytest.mark.skip(reason=config.stash[FORK_PROBLEM]))
        for name, reason in OPTIONAL.items():
            if item.get_closest_marker(name) and not config.getoption(f"--{name}"):
                item.add_marker(pytest.mark.skip(reason=f"{reason}; run with --{name}"))
