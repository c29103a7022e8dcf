#!/usr/bin/env bash
# Turns any SimpleTuner release into the GH200 fork. A thin wrapper: finds a Python, makes what is missing, hands over.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/scripts/lib/bootstrap.sh"

# Applying with tests and retire run the trainer, so they need the full environment; everything else the small one.
needs_full_environment() {
    local argument
    [[ $# -eq 0 || $1 == apply || $1 == retire || $1 == -* ]] || return 1
    for argument; do
        case $argument in
            --skip-tests | --dry-run | --rollback | --resume | --help | -h) return 1 ;;
        esac
    done
}

if needs_full_environment "$@"; then
    "$here/scripts/setup.sh"
fi
python=$(gh200_tool_python)
if [[ ${1:-} == wheel ]]; then
    GH200_UV=$(gh200_find_uv "$python")
    export GH200_UV
fi
exec "$python" "$here/gh200_rebase" "$@"
