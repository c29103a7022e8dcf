#!/usr/bin/env bash
# From nothing to a trained tiny model: environment, fork, data, a real `accelerate launch`, a report.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
# shellcheck source=scripts/lib/checks.sh
source "$here/lib/checks.sh"
# shellcheck source=scripts/lib/stages.sh
source "$here/lib/stages.sh"
root=$(gh200_root)

usage() {
    cat <<'HELP'
usage: scripts/quickstart.sh [--steps N] [--features on|off] [--keep] [-v] [--help]

Sets up .venv, builds the fork from upstream, makes a tiny SDXL model and a small dataset, and trains a LoRA by the
documented command, on the GPU where there is one. Ends with a summary, an image the model made before training beside
one it made after, upstream's interactive report, and build/quickstart/report.html: what of the GH200 was used, and why.

  --steps N        optimizer steps (24)
  --features off   train as plain upstream: no in-memory data, no unified-memory caches, no ramp
  --keep           go on from what the last run left (caches, checkpoints)
  -v, --verbose    everything each stage prints; otherwise it is in the log, whose path is shown
  --help           this text

The first run downloads about 4 GB; later ones start in seconds.
HELP
}

arguments=()
while (($#)); do
    case $1 in
        --steps)
            [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || gh200_die "--steps needs a whole number above 0" "got '${2:-}'" "--steps 24"
            arguments+=("$1" "$2") && shift
            ;;
        --features)
            [[ ${2:-} =~ ^(on|off)$ ]] || gh200_die "--features is on or off" "got '${2:-}'" "--features off"
            arguments+=("$1" "$2") && shift
            ;;
        --keep) arguments+=("$1") ;;
        --verbose | -v) export GH200_VERBOSE=1 ;;
        --help | -h) usage && exit ;;
        *) gh200_die "unknown argument: $1" "" "scripts/quickstart.sh --help" ;;
    esac
    shift
done

cd "$root"
gh200_check_writable "$(gh200_home)"
# Its directory is emptied first: a second one would pull the first one's files away.
exec {turn}>"$(gh200_home)/build/.quickstart.flock"
flock -n "$turn" || gh200_die "a quick start is at work in this checkout" "build/quickstart is its directory" "wait for it, or use another clone"
gh200_open_log quickstart
scripts/setup.sh
# A tree that is itself a built fork needs no building.
[[ -f simpletuner/__init__.py ]] || gh200_stage_fork "$(gh200_home)/.venv/bin/python"
gh200_lab quickstart.run "${arguments[@]}"
