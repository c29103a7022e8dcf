"""The documents are true: links resolve, commands run, generated pages are current, the image can be seen."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import look, need_browser

from gh200_rebase.lock.drift import INFO, REVIEW, WARNING, compare
from gh200_rebase.pages import manifest, supported
from gh200_rebase.patches.lockfile import Entry, Lock
from gh200_rebase.project import Project
from tests.doc_commands import COMMANDS, Elsewhere, Program, Run
from tests.doc_pages import FENCE, ROOT, Page, pages, section

IMAGE = ROOT / "docs" / "architecture.svg"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_relative_link_and_anchor_resolves(page: Page) -> None:
    broken = []
    for link in page.links():
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.path.parent / file).resolve() if file else page.path
        if not target.exists() or (anchor and anchor not in Page(target).anchors()):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize(
    "page", [page for page in pages() if page.name.startswith("docs/")], ids=lambda page: page.name
)
def test_pages_of_docs_link_to_nothing_outside(page: Page) -> None:
    """The fork shows them a second time under documentation/gh200, where nothing else is beside them."""
    assert not [link for link in page.links() if link.startswith(("..", "/"))]


def test_every_page_can_be_reached_from_the_readme() -> None:
    readme = next(page for page in pages() if page.name == "README.md")
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in readme.links()}
    assert {page.path for page in pages() if page.name.startswith("docs/")} <= linked


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_page_names_a_place_of_one_machine(page: Page) -> None:
    assert not re.search(r"(?<![\w.*])/(root|home|work|workspace|tmp)/", page.text)


def test_supported_upstreams_is_what_the_lock_gives() -> None:
    project = Project(ROOT)
    page = (ROOT / "docs" / "SUPPORTED_UPSTREAMS.md").read_text(encoding="utf-8")
    assert page == supported.render(project.lock)
    assert f"simpletuner[cuda13]=={project.lock.newest()} " in (ROOT / "requirements" / "fork.in").read_text()


def test_supported_upstreams_reports_moves_and_skips() -> None:
    place = Entry("1.0", "applied", 0, 1, "c", "a", "n", "s")
    entries = {
        "01/x": (place, Entry("2.0", "applied", 1, 1, "c", "a", "n", "s")),
        "02/y": (Entry("1.0", "skipped"), Entry("10.0", "applied", 0, 1, "c", "a", "n", "s")),
    }
    page = supported.render(Lock({"1.0": "1" * 64, "2.0": "2" * 64, "10.0": "3" * 64}, entries))
    assert "| 2.0 | 1 | 1 | 1 | 1 | `222222222222` |" in page
    assert page.index("| 2.0 |") < page.index("| 10.0 |")
    assert "- 2.0: 01/x: another form of the edit matched (0 -> 1)" in page
    assert "- 02/y: 1.0 to 2.0" in page
    assert "No release was verified yet." in supported.render(Lock())


def test_a_stale_page_is_named(tmp_path: Path) -> None:
    for path in ROOT.iterdir():
        if path.name not in ("build", "docs"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "docs").mkdir()
    project = Project(tmp_path)
    assert len(manifest.write(project)) == 3
    manifest.check(project)
    (tmp_path / "docs" / "SUPPORTED_UPSTREAMS.md").write_text("old")
    with pytest.raises(Exception, match=r"SUPPORTED_UPSTREAMS\.md"):
        manifest.check(project)


def test_the_image_can_be_seen(tmp_path: Path) -> None:
    seen = look(need_browser(), IMAGE, tmp_path)
    assert seen.console == [] and seen.shows("#2e7d32") and seen.shows("#e6f4e1")
    numbers = set(re.findall(r'class="number"[^>]*>(\d\d)<', IMAGE.read_text(encoding="utf-8")))
    assert numbers == {f"{patch.number:02}" for patch in Project(ROOT).patches}


# --- commands ---


def test_every_command_has_a_row_and_every_row_a_command() -> None:
    typed = {command for page in pages() for command in page.commands()}
    assert typed - COMMANDS.keys() == set(), "commands of the documents without a row in doc_commands.py"
    assert COMMANDS.keys() - typed == set(), "rows of doc_commands.py without a document"


@pytest.mark.parametrize("command", [command for command, how in COMMANDS.items() if isinstance(how, Elsewhere)])
def test_the_test_that_runs_a_command_exists(command: str) -> None:
    how = COMMANDS[command]
    assert isinstance(how, Elsewhere)
    file, _, name = how.test.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    tests = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert how.mentions in text and (not name or name in tests)


@pytest.mark.parametrize("command", [command for command, how in COMMANDS.items() if isinstance(how, Program)])
def test_commands_for_programs_of_other_machines(command: str) -> None:
    how = COMMANDS[command]
    assert isinstance(how, Program) and how.why
    if shutil.which(how.name) is None or how.more is None:
        pytest.skip(how.why)
    assert _bash(command + how.more, ROOT).returncode == 0


def _marks(how: Run) -> list[pytest.MarkDecorator]:
    marks = [getattr(pytest.mark, name) for name in how.marks]
    return [*marks, pytest.mark.slow(reason=how.slow)] if how.slow else marks


RUNNABLE = [
    pytest.param(command, marks=_marks(how), id=command) for command, how in COMMANDS.items() if isinstance(how, Run)
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory like a checkout: what commands read is linked, what they may write to is a copy."""
    directory = tmp_path_factory.mktemp("desk")
    for name in ("gh200_diagnostic.py", "scripts", "docs", "simpletuner", "gh200_lab", "tests", "requirements"):
        (directory / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "config", directory / "config")
    shutil.copy(ROOT / "config" / "gh200_in_memory_example.json", directory / "config" / "your_config.json")
    (directory / "build/fork/.git/info").mkdir(parents=True)
    (directory / ".venv").symlink_to(sys.prefix)
    return directory


@pytest.mark.parametrize("command", RUNNABLE)
def test_a_command_of_the_documents_runs(command: str, desk: Path) -> None:
    how = COMMANDS[command]
    assert isinstance(how, Run)
    if how.needs and not (ROOT / how.needs).exists():
        pytest.skip(f"there is no {how.needs}")
    done = _bash(command + how.more, ROOT if how.at_root else desk)
    assert done.returncode in how.codes, (done.stdout + done.stderr)[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    if how.more == " --help":
        assert all(word in done.stdout for word in command.split()[1:])


def _bash(command: str, where: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    # Set for the unit tests' own processes; an operator has it not.
    environment.pop("SIMPLETUNER_SKIP_TORCH", None)
    return subprocess.run(
        ["bash", "-c", command], check=False, cwd=where, env=environment, capture_output=True, text=True, timeout=580
    )


def _example() -> tuple[str, list[tuple[str, str, str]]]:
    """The worked example of REBASING.md, and its table of places that moved."""
    text = section(next(page for page in pages() if page.name == "docs/REBASING.md"), "## A worked example")
    return text, re.findall(r"^\| `([^`]+)` \| (\w+) \| (.+) \|$", text, re.MULTILINE)


def test_the_places_of_the_worked_example_moved_as_the_lock_says() -> None:
    lock = Project(ROOT).lock
    text, places = _example()
    assert "## A worked example: 4.4.1 to 4.5.0" in text and {level for _, level, _ in places} == {
        REVIEW,
        WARNING,
        INFO,
    }
    for key, level, what in places:
        after = lock.expected(key, "4.5.0")
        assert after is not None, f"{key} is not in the lock"
        assert compare(lock.expected(key, "4.4.1"), after) == (level, what), key


@pytest.mark.slow(reason="rebases onto several releases in a clone")
@pytest.mark.network
def test_the_worked_example_of_a_rebase(tmp_path: Path) -> None:
    """The commands of REBASING.md in order, in a clone of this checkout as it stands, and the same on a matrix."""
    text, places = _example()
    commands = [line for language, body in FENCE.findall(text) if language == "bash" for line in body.splitlines()]
    assert commands[:2] == ["git clone -q . build/example", "cd build/example"]
    clone = _clone(tmp_path)
    results = {command: _bash(command, clone) for command in commands[2:]}
    dry_run = results["./execute_gh200_rebase.sh --dry-run --upstream pypi:4.5.0"]
    assert {command: done.returncode for command, done in results.items() if done.returncode} == {
        "./execute_gh200_rebase.sh --dry-run --upstream pypi:4.5.0": dry_run.returncode
    }
    assert dry_run.returncode == 2
    lines = (dry_run.stdout + dry_run.stderr).splitlines()
    assert [key for key, _, what in places if not any(key in line and what in line for line in lines)] == []
    assert "accepted: 4.5.0 05/builders:" in results["./execute_gh200_rebase.sh lock --from 4.4.1 --to 4.5.0"].stdout
    assert _bash("./execute_gh200_rebase.sh matrix --from 4.4.1 --to 4.5.0", clone).returncode == 0
    assert _bash("./execute_gh200_rebase.sh manifest", clone).returncode == 0


def _clone(directory: Path) -> Path:
    """What `git clone` gives once the work tree is committed; upstream's archives come from this checkout's cache."""
    clone = directory / "example"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    for name in ("gh200_rebase", "gh200_lab", "patches", "simpletuner", "scripts", "docs", "config", "requirements"):
        shutil.copytree(ROOT / name, clone / name, dirs_exist_ok=True)
    for name in ("gh200_diagnostic.py", "train.py", "execute_gh200_rebase.sh"):
        shutil.copy2(ROOT / name, clone / name)
    known = ROOT / "build" / "upstream"
    for archive in [*known.glob("downloads/simpletuner-4.[45].*.tar.gz"), *known.glob("releases.json")]:
        target = clone / "build" / "upstream" / archive.relative_to(known)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(archive, target)
    return clone
