#!/usr/bin/env bash
# Style, types and layers of this checkout, never of the built fork; all of them run, whatever the first one says.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"

usage() {
    cat <<'HELP'
usage: scripts/gates.sh [--help]

ruff check, ruff format --check, mypy and lint-imports, as pyproject.toml configures them, and scripts/check_names.py: words
of the old vocabulary, classes that are defined twice in a package. Needs .venv, no fork.

exit code: 0 when all five passed
HELP
}

case ${1:-} in
    "") ;;
    --help | -h) usage && exit ;;
    *) gh200_die "unknown argument: $1" "" "scripts/gates.sh --help" ;;
esac

cd "$(gh200_root)"
tools=$(gh200_home)/.venv/bin
failed=()
gate() {
    local output
    output=$("$tools/$1" "${@:2}" 2>&1) || { failed+=("$1") && printf '%s\n' "$output"; }
}
gate ruff check --quiet .
gate ruff format --quiet --check .
gate mypy
gate lint-imports --no-logo
gate python scripts/check_names.py
((${#failed[@]} == 0)) || gh200_die "these gates are shut: ${failed[*]}" "see above" "mend it, then scripts/gates.sh" 1
gh200_say "gates: ruff, mypy, lint-imports and names passed"
