#!/usr/bin/env bash
# Shows each feature of the built fork by itself; --help explains.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
gh200_lab validation.gh200_features "$@"
