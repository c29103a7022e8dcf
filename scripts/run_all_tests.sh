#!/usr/bin/env bash
# Runs the tests, after setting up whatever they need: the environment, and the fork built from this checkout.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
# shellcheck source=scripts/lib/checks.sh
source "$here/lib/checks.sh"
# shellcheck source=scripts/lib/stages.sh
source "$here/lib/stages.sh"
root=$(gh200_root)

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

# duration: of this script by the clock, and the CPU time of every process it waited for.
duration() {
    local fields
    read -ra fields <"/proc/$$/stat"
    echo "took $(minutes "$SECONDS"); CPU time $(minutes $(((fields[15] + fields[16]) / $(getconf CLK_TCK))))"
}

usage() {
    cat <<'HELP'
usage: scripts/run_all_tests.sh [--fast | --full] [--level NAME] [-v] [-- PYTEST_ARGUMENT...]

Style, types and layers first (scripts/gates.sh, under a minute); then the unit tests and the tests that train a tiny
model in the real fork. Sets up .venv and build/fork first.

  --fast        unit tests only; no fork is built
  --full        also the slow ones: every upstream release, both lock platforms, and all of upstream's own tests on the
                pristine tree and on the fork, compared (hours; goes on where it was interrupted)
  --level NAME  only one level: unit, integration, system or performance
  -v            everything each stage prints; otherwise it is in the log, whose path is shown
  --help        this text

Ends with how long it took, by the clock and in CPU time. exit code: 0 when everything passed
HELP
}

scope=default level=""
while (($#)); do
    case $1 in
        --fast) scope=fast ;;
        --full) scope=full ;;
        --level) level=${2:?--level needs a name} && shift ;;
        --verbose | -v) export GH200_VERBOSE=1 ;;
        --help | -h) usage && exit ;;
        --) shift && break ;;
        *) gh200_die "unknown argument: $1" "" "scripts/run_all_tests.sh --help" ;;
    esac
    shift
done

cd "$root"
gh200_check_writable "$(gh200_home)"
gh200_open_log tests
scripts/setup.sh
python=$(gh200_home)/.venv/bin/python
stage() { gh200_stage "$python" "$@"; }
stage --done '(?<=gates: ).*' gates -- scripts/gates.sh
# build_fork: and its bytecode, which no process writes where PYTHONDONTWRITEBYTECODE is set: a sixth of each cold start.
build_fork() {
    gh200_stage_fork "$python"
    "$python" -m compileall -q build/fork/simpletuner build/pristine/simpletuner >>"$GH200_LOG" 2>&1 || true
}
marks=("${level:+$level}")
arguments=()
case $scope in
    fast)
        marks+=("not slow")
        arguments+=(--ignore=tests/e2e --ignore=tests/golden)
        ;;
    default)
        marks+=("not slow")
        build_fork
        arguments+=(--fork --network)
        ;;
    full)
        build_fork
        stage --done '^.*releases.*$' matrix -- ./execute_gh200_rebase.sh matrix
        arguments+=(--fork --network)
        ;;
esac
chosen=""
for mark in "${marks[@]}"; do
    [[ -z $mark ]] || chosen+=${chosen:+ and }$mark
done
[[ -z $chosen ]] || arguments+=(-m "$chosen")
# A line of pytest's ends with how far it is; with its own colours and width it could not be found.
pytest=(env COLUMNS=80 "$python" -m pytest --color=no "${arguments[@]}")
closing='^=+ (.*(?:passed|failed|error|skipped|deselected|no tests ran).*?) =+$'
tests() { stage --percent '\[ *([0-9]+)%\]' --done "$closing" --shown 200 "$@"; }

code=0
if [[ $scope == fast || -n $level || $# -gt 0 ]]; then
    tests tests -- "${pytest[@]}" tests "$@" || code=$?
else
    # A training run keeps one core busy; the unit tests take the other. Their exit code is kept for the stage that shows
    # them: only this shell can wait for them.
    log=$GH200_LOG.unit
    (
        trap 'kill "$!"' TERM
        "${pytest[@]}" tests/unit tests/integration tests/docs >"$log" 2>&1 &
        ended=0
        wait "$!" || ended=$?
        echo "$ended" >"$log.code"
    ) &
    unit=$!
    trap 'kill "$unit" 2>/dev/null || true; rm -f "$log" "$log.code"' EXIT
    tests "fork's tests" -- "${pytest[@]}" tests/e2e tests/golden || code=$?
    # shellcheck disable=SC2016
    tests "unit tests" -- bash -c 'tail -n +1 -f --pid="$1" "$2"; exit "$(<"$2.code")"' wait "$unit" "$log" || code=$?
    wait "$unit"
fi
# Only whole runs: a level or a choice of tests was asked for to be quick.
if [[ $scope == full && -z $level && $# == 0 ]]; then
    stage "upstream's tests" -- scripts/test_upstream_features.sh --full || code=1
fi
# What was skipped and why, and what the suites end with.
sed -n -E -e '/^(SKIPPED|FAILED|ERROR) /p' -e '/^=+ .*(passed|failed|error|no tests ran).* =+$/p' "$GH200_LOG"
((code == 0)) && echo "all tests passed" || echo "tests failed"
duration
echo "log: $(gh200_log_path)"
exit "$code"
