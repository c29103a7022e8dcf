#!/usr/bin/env bash
# Shows that upstream's features work in the fork as in the pristine tree. A thin wrapper: --help tells all.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
home=$(gh200_home)
gh200_environment_is_whole "$home/.venv" "$home/requirements/fork.lock" || "$home/scripts/setup.sh" >&2
exec "$home/.venv/bin/python" "$here/validation/upstream_features.py" "$@"
