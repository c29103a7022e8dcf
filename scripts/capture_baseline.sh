#!/usr/bin/env bash
# Times a training run and keeps the figures, or compares with earlier ones; --help explains.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
home=$(gh200_home)
gh200_environment_is_whole "$home/.venv" "$home/requirements/fork.lock" || "$home/scripts/setup.sh" >&2
exec "$home/.venv/bin/python" "$here/validation/baseline.py" "$@"
