"""The command line of the rebase tool: arguments in, exit code out."""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import commands, flow
from .errors import EXIT_REJECTED, RebaseError, Rejected
from .project import Project

EPILOG = """\
exit codes: 0 clean, 1 an anchor failed, 2 drift needs review, 3 tests failed, 4 rejected (bad input, dirty tree)

examples:
  ./execute_gh200_rebase.sh --dry-run                           what would happen, nothing written
  ./execute_gh200_rebase.sh --upstream pypi:latest              rebase on the newest release
  ./execute_gh200_rebase.sh --upstream git:../SimpleTuner@main --into ../SimpleTuner
  ./execute_gh200_rebase.sh explain 01                          what patch 01 does and where it lands
  ./execute_gh200_rebase.sh check --upstream pypi:latest --propose   write a repair for each edit that lost its place
  ./execute_gh200_rebase.sh matrix --from 4.5.0                  every release since 4.5.0
  ./execute_gh200_rebase.sh --rollback                          back to the tree as it was before the last run
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would exit with 2, which here means drift.
        self.print_usage(sys.stderr)
        print(f"error: {message}\n  fix: {self.prog} --help", file=sys.stderr)
        raise SystemExit(EXIT_REJECTED)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="execute_gh200_rebase.sh",
        description="Turn any SimpleTuner release into the GH200 fork: one commit per patch, proved, reversible.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    def add(name: str, help_text: str, *, upstream: bool = False, into: str | None = None) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(
            name, help=help_text, description=help_text, epilog=EPILOG, formatter_class=parser.formatter_class
        )
        if upstream:
            sub.add_argument(
                "--upstream",
                metavar="SPEC",
                help="pypi:VERSION, pypi:latest, git:URL_OR_PATH@REF or path:DIR "
                "(default: the newest release the lock has verified)",
            )
        if into:
            sub.add_argument("--into", metavar="DIR", type=Path, default=None, help=into)
        sub.add_argument("--json", metavar="FILE", type=Path, help="also write the result as JSON")
        return sub

    apply = add(
        "apply",
        "build or update the fork (the default command)",
        upstream=True,
        into="the fork's tree (default: build/fork)",
    )
    apply.add_argument("-v", "--verbose", action="store_true", help="every edit, not only those with something to say")
    apply.add_argument("--dry-run", action="store_true", help="show what would happen; write nothing")
    apply.add_argument("--skip-tests", action="store_true", help="no smoke test before, no validation after")
    apply.add_argument("--accept-drift", action="store_true", help="go on although surroundings changed; not recorded")
    apply.add_argument("--rollback", action="store_true", help="return the tree to what it was before the last run")
    apply.add_argument("--yes", action="store_true", help="do not ask before a rollback")
    apply.add_argument(
        "--resume", action="store_true", help="of older releases; a run that was interrupted is simply run again"
    )
    check = add("check", "dry run of everything; all failures listed", upstream=True)
    check.add_argument("--accept-drift", action="store_true", help="exit 0 although surroundings changed")
    add(
        "status",
        "what the fork's tree is, and what the lock has verified",
        into="the fork's tree (default: build/fork)",
    )
    explain = add("explain", "what one patch does, and where it lands in this upstream", upstream=True)
    explain.add_argument("patch", metavar="NN", help="number of the patch")
    review = add("review", "step through what moved, old beside new, and accept it or not", upstream=True)
    review.add_argument("--accept", metavar="EDIT", action="append", help="accept this one without asking; or `all`")
    for sub in (check, explain, review):
        sub.add_argument(
            "--verified",
            metavar="SPEC",
            help="the upstream to show beside it (default: the newest release the lock has verified)",
        )
    for sub in (check, explain):
        sub.add_argument(
            "--propose",
            action="store_true",
            help="look for the place of each edit that lost it, and write the best as [[edit.variant]] into the patch",
        )
    add("export", "unified diffs of all patches, for reading", upstream=True, into="directory for the diffs")
    add("retire", "run the retire_when test of each patch, edit and workaround; list what can go", upstream=True)
    watch = add("watch-upstream", "prepare a branch for a release that is newer than the lock; nothing is pushed")
    watch.add_argument("--release", metavar="VERSION", help="this one, whatever the index says (default: the newest)")
    watch.add_argument("--skip-tests", action="store_true", help="build the fork, but do not validate it")
    lock = add("lock", "verify every release and rewrite patches/lock.json; run it after reviewing drift")
    matrix = add("matrix", "apply to every PyPI release in a range; proofs, drift, a table")
    for sub in (lock, matrix):
        sub.add_argument(
            "--from", dest="first", metavar="VERSION", default=commands.OLDEST, help=f"oldest ({commands.OLDEST})"
        )
        sub.add_argument("--to", dest="last", metavar="VERSION", default="latest", help="newest (latest)")
        sub.add_argument("--jobs", type=_count, help="processes (default: one per core)")
    wheel = add("wheel", "the fork as a wheel X.Y.Z+gh200.N", into="directory for the wheel (default: build/dist)")
    wheel.add_argument("--fork", metavar="DIR", type=Path, help="the fork's tree (default: build/fork)")
    verify = add("verify", "whether a wheel or a tree is what these patches make of its upstream", upstream=True)
    verify.add_argument("made", metavar="WHEEL_OR_TREE", type=Path, help="a wheel of the fork, or the fork's directory")
    manifest = add(
        "manifest", "write the patch manifest and the page of supported upstreams anew, from patches and lock"
    )
    manifest.add_argument("--check", action="store_true", help="only say whether they are in step")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes")
    return int(text)


def _with_default_command(arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    if arguments and (arguments[0] in ("-h", "--help") or not arguments[0].startswith("-")):
        return list(arguments)
    return ["apply", *arguments]


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Parse the arguments, run one command, return its exit code."""
    parser = _parser()
    options = parser.parse_args(_with_default_command(sys.argv[1:] if arguments is None else arguments, parser))
    project = Project(root or Path(__file__).resolve().parent.parent)
    result: dict[str, Any] = {"command": options.command, "exit_code": EXIT_REJECTED}
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = getattr(commands, options.command.replace("-", "_"))(project, options, result)
    except RebaseError as error:
        print(f"error: {error.render()}", file=sys.stderr)
        result["error"] = error.render()
        code = error.exit_code
    except KeyboardInterrupt as error:
        print(f"\n{error or 'interrupted'}: {_left(project, options)}", file=sys.stderr)
        code = EXIT_REJECTED
    except OSError as error:
        code = _system_error(error)
        result["error"] = str(error)
    return _write_json(options.json, result, code)


def _terminated(number: int, frame: object) -> NoReturn:
    # The way of Ctrl-C: what was begun is taken back, and what is left is said.
    raise KeyboardInterrupt("terminated")


def _left(project: Project, options: argparse.Namespace) -> str:
    if options.command == "apply":
        return flow.left_behind(options.into or project.fork)
    return "nothing is half written; what was found so far is kept, and the same command goes on from there"


def _system_error(error: OSError) -> int:
    fixes = {
        errno.ENOSPC: "free some space and run the same command again; the tree is as before",
        errno.EACCES: "make the path writable, or choose another directory with --into",
        errno.EROFS: "the file system is read-only: choose another directory with --into",
    }
    rejection = Rejected(
        error.strerror or type(error).__name__,
        where=str(error.filename or ""),
        fix=fixes.get(error.errno or 0, "see the message above"),
    )
    print(f"error: {rejection.render()}", file=sys.stderr)
    return EXIT_REJECTED


def _write_json(path: Path | None, result: dict[str, Any], code: int) -> int:
    result["exit_code"] = code
    if path is None:
        return code
    try:
        path.write_text(json.dumps(result, indent=1, default=str) + os.linesep, encoding="utf-8")
    except OSError as error:
        print(f"error: the JSON result cannot be written to {path}: {error.strerror}", file=sys.stderr)
        return code or EXIT_REJECTED
    return code
