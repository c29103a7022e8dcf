#!/usr/bin/env bash
# Runs a command on a CUDA device made of host memory. See usage below.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<'HELP'
usage: tests/cuda_sim/run.sh [options] COMMAND...

Runs COMMAND, and every process it starts, on CUDA devices made of host memory: torch's own CUDA code (allocators,
streams, copies, pinned memory) above a strict runtime and driver, with kernels done by CPU code on the same bytes.

  --devices N       GPUs that nvidia-smi and CUDA see (1..16; default 1)
  --hbm-mb N        memory of each GPU, per process (default 8192)
  --managed-mb N    managed memory a process may have (default 16384)
  --mode MODE       numa  HBM is a NUMA node: the CPU reads managed pages in it, first touch follows the advice (default)
                    cdmm  coherent, but HBM is the driver's: a page the CPU touches comes back from HBM
                    pcie  no shared page tables: the GPU does not read ordinary memory
                    pool  one memory for CPU and GPU: mem_get_info is MemFree, NVML knows no memory
  --family NAME     gh200 (numa), gb200 (numa, two GPUs on one CPU), gb10 (pool), h100 (pcie); set before --mode, --devices
  --page-kb N       4 or 64, the size of managed pages (default 64)
  --fail-every N    every Nth call of the driver (cu...) fails with CUDA_ERROR_UNKNOWN; torch's own (cuda...) do not
  --report FILE     every process that used the GPU appends one line of JSON when it ends: calls, violations, copies,
                    synchronisations, launches nobody handled, what was left; faults, evictions and
                    bytes over the link by direction and cause, in all and per optimizer step
  --help            this text

Set for single runs in the environment: CUDA_VISIBLE_DEVICES works as ever; CUDA_SIM_PAGE_CACHE=BYTES of HBM are page
cache in NUMA mode: used to CUDA, reclaimed when needed; CUDA_SIM_LOG=FILE logs every call;
CUDA_SIM_TRACE_VIOLATIONS=1 prints the Python stack of each violation; CUDA_SIM_BACKEND=gloo makes torch.distributed
take gloo where it is asked for NCCL; CUDA_SIM_RANDOM=cpu draws from the CPU's generator wherever the device's default
one is meant, to compare a run with one on the CPU; CUDA_SIM_FAIL=NAME with CUDA_SIM_FAIL_AFTER, CUDA_SIM_FAIL_TIMES and
CUDA_SIM_FAIL_CODE lets one function fail; CUDA_SIM_VERSION=12090 is an older driver.

Not played: speed, asynchrony, NCCL, CUDA graphs, compiled and Triton kernels.

  tests/cuda_sim/run.sh --devices 2 .venv/bin/python -c "import torch; print(torch.ones(3, device='cuda:1'))"
HELP
}

die() {
    echo "error: $1" >&2
    [[ -z ${2:-} ]] || echo "  fix: $2" >&2
    exit 2
}

# whole NAME VALUE LOWEST HIGHEST
whole() {
    if ! [[ $2 =~ ^[0-9]{1,9}$ ]] || ((10#$2 < $3 || 10#$2 > $4)); then
        die "$1 needs a whole number from $3 to $4, got '$2'" "tests/cuda_sim/run.sh --help"
    fi
}

devices=1 hbm=8192 managed=16384 mode=numa page=64 every=0 report=''
while (($#)); do
    case $1 in
        --devices | --hbm-mb | --managed-mb | --mode | --family | --page-kb | --fail-every | --report)
            (($# > 1)) || die "$1 needs a value" "tests/cuda_sim/run.sh --help"
            ;;&
        --devices) whole "$1" "$2" 1 16 && devices=$2 && shift ;;
        --hbm-mb) whole "$1" "$2" 1 1048576 && hbm=$2 && shift ;;
        --managed-mb) whole "$1" "$2" 1 1048576 && managed=$2 && shift ;;
        --fail-every) whole "$1" "$2" 1 999999999 && every=$2 && shift ;;
        --mode)
            [[ $2 =~ ^(numa|cdmm|pcie|pool)$ ]] || die "--mode is numa, cdmm, pcie or pool, got '$2'" "--mode numa"
            mode=$2 && shift
            ;;
        --family)
            case $2 in
                gh200) mode=numa ;;
                gb200) mode=numa devices=2 ;;
                gb10) mode=pool ;;
                h100) mode=pcie ;;
                *) die "--family is gh200, gb200, gb10 or h100, got '$2'" "--family gh200" ;;
            esac
            shift
            ;;
        --page-kb)
            [[ $2 =~ ^(4|64)$ ]] || die "--page-kb is 4 or 64, got '$2'" "--page-kb 64"
            page=$2 && shift
            ;;
        --report)
            report=$(realpath -m -- "$2") && shift
            [[ -d $(dirname "$report") ]] || die "--report: there is no directory $(dirname "$report")" "make it first"
            [[ ! -d $report ]] || die "--report: $report is a directory" "name a file"
            ;;
        --help | -h) usage && exit ;;
        --) shift && break ;;
        -*) die "unknown option: $1" "tests/cuda_sim/run.sh --help" ;;
        *) break ;;
    esac
    shift
done
(($#)) || die "no command to run" "tests/cuda_sim/run.sh python -c 'import torch'"
export PATH=$here/bin:$PATH
command -v -- "$1" >/dev/null || die "there is no command '$1'" "name a program on PATH, or its path"

# Names before the device was renamed.
for old in "${!STAND_IN_@}"; do
    new=CUDA_SIM_${old#STAND_IN_}
    [[ -v $new ]] || export "$new=${!old}"
done
libraries=$("$here/build.sh")
kibibyte=1024 mebibyte=1048576
export CUDA_SIM_DEVICES=$devices CUDA_SIM_HBM=$((10#$hbm * mebibyte)) CUDA_SIM_MANAGED=$((10#$managed * mebibyte))
export CUDA_SIM_MODE=$mode CUDA_SIM_PAGE=$((page * kibibyte)) CUDA_SIM_FAIL_EVERY=$every CUDA_SIM_REPORT=$report
export PYTHONPATH=$here/python${PYTHONPATH:+:$PYTHONPATH}
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_PRELOAD=$libraries/libcuda.so.1${LD_PRELOAD:+:$LD_PRELOAD}
exec "$@"
