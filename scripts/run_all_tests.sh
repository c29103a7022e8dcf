#!/usr/bin/env bash
# Runs the tests, after setting up whatever they need: the environment, and the fork built from this checkout.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
root=$(gh200_root)

usage() {
    cat <<'HELP'
usage: scripts/run_all_tests.sh [--fast | --full] [--level NAME] [-- PYTEST_ARGUMENT...]

Style, types and layers first (scripts/gates.sh, under a minute); then the unit tests and the tests that train a tiny
model in the real fork. Sets up .venv and build/fork first.

  --fast        unit tests only; no fork is built
  --full        also the slow ones: every upstream release, both lock platforms, and all of upstream's own tests on the
                pristine tree and on the fork, compared (hours; goes on where it was interrupted)
  --level NAME  only one level: unit, integration, system or performance
  --help        this text

exit code: 0 when everything passed
HELP
}

scope=default level=""
while (($#)); do
    case $1 in
        --fast) scope=fast ;;
        --full) scope=full ;;
        --level) level=${2:?--level needs a name} && shift ;;
        --help | -h) usage && exit ;;
        --) shift && break ;;
        *) gh200_die "unknown argument: $1" "" "scripts/run_all_tests.sh --help" ;;
    esac
    shift
done

cd "$root"
scripts/setup.sh
scripts/gates.sh
marks=("${level:+$level}")
arguments=()
case $scope in
    fast)
        marks+=("not slow")
        arguments+=(--ignore=tests/fork)
        ;;
    default)
        marks+=("not slow")
        ./execute_gh200_rebase.sh --skip-tests
        arguments+=(--fork --network)
        ;;
    full)
        ./execute_gh200_rebase.sh --skip-tests
        ./execute_gh200_rebase.sh matrix
        arguments+=(--fork --network)
        ;;
esac
chosen=""
for mark in "${marks[@]}"; do
    [[ -z $mark ]] || chosen+=${chosen:+ and }$mark
done
[[ -z $chosen ]] || arguments+=(-m "$chosen")
run() { .venv/bin/python -m pytest "${arguments[@]}" "$@"; }

code=0
if [[ $scope == fast || -n $level || $# -gt 0 ]]; then
    run tests "$@" || code=$?
else
    # A training run keeps one core busy; the unit tests take the other.
    log=build/unit-tests.log
    run tests/unit >"$log" 2>&1 &
    unit=$!
    trap 'kill "$unit" 2>/dev/null || true' EXIT
    echo "unit tests run beside the fork's; their messages: $log"
    run tests/fork || code=$?
    wait "$unit" || { code=$? && cat "$log"; }
    trap - EXIT
    echo "unit tests: $(tail -n 1 "$log")"
fi
# Only whole runs: a level or a choice of tests was asked for to be quick.
if [[ $scope == full && -z $level && $# == 0 ]]; then
    scripts/test_upstream_features.sh --full || code=1
fi
((code == 0)) && echo "all tests passed" || echo "tests failed"
exit "$code"
