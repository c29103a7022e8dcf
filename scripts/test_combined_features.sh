#!/usr/bin/env bash
# Trains in the built fork with its features together, and upstream's beside them; --help explains.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
gh200_lab validation.combined_features "$@"
