#!/usr/bin/env bash
# The old path of tests/cuda_sim/run.sh.
exec "$(dirname "${BASH_SOURCE[0]}")/../cuda_sim/run.sh" "$@"
