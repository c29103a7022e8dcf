#!/usr/bin/env bash
# Shows that upstream's features work in the fork as in the pristine tree. A thin wrapper: see --help.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
gh200_lab validation.upstream_features "$@"
