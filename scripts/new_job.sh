#!/usr/bin/env bash
# From a directory of images to a config that trains, and the line that starts it; --help explains.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
root=$(gh200_root)
home=$(gh200_home)
gh200_environment_is_whole "$home/.venv" "$home/requirements/fork.lock" || "$home/scripts/setup.sh" >&2
exec "$home/.venv/bin/python" -m simpletuner.gh200.new_job --root "$root" "$@"
