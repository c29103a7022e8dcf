#!/usr/bin/env bash
# Times a training run and stores the measurements, or compares with earlier ones; --help explains.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
gh200_lab validation.baseline "$@"
