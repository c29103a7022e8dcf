#!/usr/bin/env bash
# The environment of a GH200 run. Source it, from bash or zsh; see --help.

# The caller's shell runs only this first part: no option is touched, and all thinking is done by a bash of its own,
# which answers with lines to evaluate. -p keeps the caller's exported options, functions and BASH_ENV out of that bash.
if [ -n "${ZSH_VERSION-}" ]; then
    typeset -g _gh200_env_sourced=no _gh200_env_file=""
    # shellcheck disable=SC2016  # zsh expands it, whatever shell it emulates
    emulate zsh -c '_gh200_env_file=${(%):-%x}'
    case ${ZSH_EVAL_CONTEXT-} in *:file*) _gh200_env_sourced=yes ;; esac
elif [ -n "${BASH_VERSION-}" ]; then
    declare -g _gh200_env_sourced=no _gh200_env_file="${BASH_SOURCE[0]}"
    if (return 0 2>/dev/null); then _gh200_env_sourced=yes; fi
else
    printf '%s\n' "error: setup_gh200_env.sh works in bash and zsh only" "  fix: source it there" >&2
    # shellcheck disable=SC2317  # the exit is for shells that allow no return here
    return 2 2>/dev/null || exit 2
fi
if [ "$_gh200_env_sourced" = yes ]; then
    # Values are handed over one by one because the caller may not have exported them.
    eval "unset _gh200_env_sourced _gh200_env_file
$(bash -p "$_gh200_env_file" --for-sourcing "$#" "${1-}" "${_gh200_env_state-}" \
        "${SIMPLETUNER_GH200_ENABLE_UVM_HINTS-}" "${GH200_UVM_OVERSUBSCRIPTION_RATIO-}" "${GH200_UVM_ACCESS_PATTERN-}" \
        "${PYTORCH_CUDA_ALLOC_CONF-}" "${ACCELERATE_MIXED_PRECISION-}" || printf 'return 2')"
    return 0
elif [ -n "${ZSH_VERSION-}" ]; then
    exec bash -p "$_gh200_env_file" "$@"
fi

set -euo pipefail
# A python on PATH may be a bash script (pyenv): a BASH_ENV that sources this file would go round in circles.
unset BASH_ENV

usage() {
    cat <<'HELP'
usage: source scripts/setup_gh200_env.sh             set the variables in this shell (bash, zsh)
       eval "$(scripts/setup_gh200_env.sh --print)"  the same without sourcing: export lines only on stdout
       gh200_env_deactivate                          once sourced: takes back what was set

Variables, with the value they get unless you have set them (yours are kept):

  SIMPLETUNER_GH200_ENABLE_UVM_HINTS=1   master switch of the memory helpers; 0 turns them off
  GH200_UVM_OVERSUBSCRIPTION_RATIO=5.0   how far beyond HBM managed memory may grow; a number above 0
  GH200_UVM_ACCESS_PATTERN=gpu_first     placement policy: gpu_first, cpu_first or balanced
  PYTORCH_CUDA_ALLOC_CONF=use_uvm:...    only where PyTorch is a build that knows these keys; stock builds reject them
  ACCELERATE_MIXED_PRECISION=bf16        only where there is an NVIDIA GPU

Which PyTorch it is, is asked of GH200_PYTHON, else of the python on PATH (GH200_PROBE_SECONDS=60 is its time limit).
What was set, kept and left out, and why, is said on stderr. Sourcing twice is harmless. Beside the variables, sourcing
leaves the function gh200_env_deactivate and its notes in _gh200_env_state.

status: 0 done, 2 rejected: a value that cannot work, a wrong argument, or not sourced; then nothing was exported
HELP
}

names=(SIMPLETUNER_GH200_ENABLE_UVM_HINTS GH200_UVM_OVERSUBSCRIPTION_RATIO GH200_UVM_ACCESS_PATTERN
    PYTORCH_CUDA_ALLOC_CONF ACCELERATE_MIXED_PRECISION)
declare -A default=([SIMPLETUNER_GH200_ENABLE_UVM_HINTS]=1 [GH200_UVM_OVERSUBSCRIPTION_RATIO]=5.0
    [GH200_UVM_ACCESS_PATTERN]=gpu_first [ACCELERATE_MIXED_PRECISION]=bf16)
declare -A allowed=(
    [SIMPLETUNER_GH200_ENABLE_UVM_HINTS]='^([01]|[oO][nN]|[oO][fF][fF]|[tT]([rR][uU][eE])?|[fF]([aA][lL][sS][eE])?|[yY]([eE][sS])?|[nN][oO]?)$'
    [GH200_UVM_OVERSUBSCRIPTION_RATIO]='^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{1,2})?$'
    [GH200_UVM_ACCESS_PATTERN]='^(gpu_first|cpu_first|balanced)$')
declare -A expected=([SIMPLETUNER_GH200_ENABLE_UVM_HINTS]="1 or 0"
    [GH200_UVM_OVERSUBSCRIPTION_RATIO]="a number above 0, such as 5.0"
    [GH200_UVM_ACCESS_PATTERN]="gpu_first, cpu_first or balanced")
# had: the caller's values; now: those in force; ours: what a sourcing changed, and before: from what.
declare -A had=() now=() ours=() before=()

limit=${GH200_PROBE_SECONDS:-60}

say() { printf '%s\n' "$*" >&2; }

# reject WHAT FIX
reject() {
    say "error: $1"
    say "  fix: $2"
    exit 2
}

trim() {
    local text=$1
    text=${text#"${text%%[![:space:]]*}"}
    printf '%s' "${text%"${text##*[![:space:]]}"}"
}

# As plain as possible, because people read it; any shell reads it back.
quoted() {
    if [[ $1 =~ ^[A-Za-z0-9_.:,/=+-]+$ ]]; then printf '%s' "$1"; else printf '%s' "${1@Q}"; fi
}

# What the fork itself would reject at the start of a run is rejected here already, all of it at once.
check_values() {
    local name value bad=""
    [[ $limit =~ ^[1-9][0-9]*$ ]] || bad+=$'\n'"       GH200_PROBE_SECONDS='$limit' is not a whole number above 0"
    for name in "${!allowed[@]}"; do
        value=$(trim "${had[$name]-}")
        [[ -n $value ]] || continue
        if [[ ! $value =~ ${allowed[$name]} ]] || [[ $name == *RATIO && ! ${value%%[eE]*} =~ [1-9] ]]; then
            bad+=$'\n'"       $name='${had[$name]}' is not ${expected[$name]}"
        fi
    done
    [[ -z $bad ]] || reject "these variables cannot work, so nothing was exported:$bad" "correct them, or unset them for the default"
}

# Prints a Python to ask, or why there is none and fails.
find_python() {
    local name found tried="there is no python on PATH"
    if [[ -n ${GH200_PYTHON:-} ]]; then
        type -P "$GH200_PYTHON" || { printf 'GH200_PYTHON=%s is no program\n' "$GH200_PYTHON" && return 1; }
        return
    fi
    for name in python python3; do
        found=$(type -P "$name") || continue
        # Only running it shows this: a pyenv shim is executable, and fails for versions that are not selected.
        if timeout -k 2 "$limit" "$found" -c '' </dev/null &>/dev/null; then
            printf '%s\n' "$found"
            return
        fi
        tried="$found does not run"
    done
    printf '%s; name one with GH200_PYTHON\n' "$tried"
    return 1
}

# `import torch` alone accepts any keys, so the allocator itself is asked.
readonly QUESTION='
import sys
sys.path[:] = [entry for entry in sys.path if entry]
def answer(*words):
    print("\ngh200:", *(" ".join(str(word).split()) for word in words), flush=True)
    sys.exit()
try:
    import torch
except ModuleNotFoundError as problem:
    answer("it has no torch; name the Python that trains with GH200_PYTHON" if problem.name == "torch" else f"its torch does not load ({problem})")
except BaseException as problem:
    answer(f"its torch does not load ({type(problem).__name__}: {problem})")
core, version = getattr(torch, "_C", None), getattr(torch, "__version__", "of unknown version")
names = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
ask = next((getattr(core, name) for name in names if hasattr(core, name)), None)
if ask is None:
    answer(f"its PyTorch {version} cannot be asked whether it accepts these keys")
try:
    ask(sys.argv[1])
except Exception as problem:
    answer(f"its PyTorch {version} is a stock build and rejects these keys ({problem})")
answer("accepted")'

# rejection KEYS: prints why the PyTorch here would not take these allocator keys; nothing when it takes them.
rejection() {
    local python answer code=0
    python=$(find_python) || { printf '%s' "$python" && return; }
    answer=$(timeout -k 2 "$limit" env -u PYTORCH_CUDA_ALLOC_CONF -u PYTORCH_ALLOC_CONF \
        "$python" -c "$QUESTION" "$1" </dev/null 2>/dev/null) || code=$?
    if ((code == 124 || code == 137)); then
        printf '%s did not answer within %s s' "$python" "$limit"
    elif [[ $answer != *$'\ngh200: '* ]]; then
        printf '%s ended with exit code %s before it could answer' "$python" "$code"
    elif [[ ${answer##*$'\ngh200: '} != accepted ]]; then
        printf '%s: %s' "$python" "${answer##*$'\ngh200: '}"
    fi
}

# Sets now[PYTORCH_CUDA_ALLOC_CONF], or says why not.
decide_allocator() {
    local name=PYTORCH_CUDA_ALLOC_CONF keys reason
    keys="use_uvm:True,uvm_oversubscription_ratio:$(trim "${now[GH200_UVM_OVERSUBSCRIPTION_RATIO]}")"
    keys+=",uvm_access_pattern:$(trim "${now[GH200_UVM_ACCESS_PATTERN]}")"
    if [[ -n ${had[$name]} ]]; then
        say "  kept      $name=${had[$name]}"
        if [[ ${had[$name]} == *uvm* && ${had[$name]} != "${ours[$name]-}" ]]; then
            reason=$(rejection "${had[$name]}")
            [[ -z $reason ]] || say "            careful: training would stop on it. $reason"
        fi
        now[$name]=${had[$name]}
    elif [[ -n ${PYTORCH_ALLOC_CONF:-} ]]; then
        say "  left out  $name: PYTORCH_ALLOC_CONF=$PYTORCH_ALLOC_CONF is set, which PyTorch reads instead"
    else
        reason=$(rejection "$keys")
        if [[ -n $reason ]]; then
            say "  left out  $name: $reason."
            say "            The caches then live in the fork's own managed memory; weights, gradients, optimizer state and EMA go beyond"
            say "            HBM by gh200_optimizations.managed_memory, which needs no such keys (docs/BEYOND_HBM.md)."
        else
            now[$name]=$keys
            say "  set       $name=$keys"
            say "            PyTorch is a build with these keys: its allocator goes beyond HBM, managed_memory's pools stay out of its way."
        fi
    fi
}

gpu_here() { [[ -e /proc/driver/nvidia/version ]] || timeout -k 2 10 nvidia-smi -L &>/dev/null; }

decide() {
    local name
    check_values
    say "GH200 environment:"
    for name in "${names[@]}"; do
        [[ -n ${default[$name]-} ]] || continue
        if [[ $name == ACCELERATE_MIXED_PRECISION && -z ${had[$name]} ]] && ! gpu_here; then
            say "  left out  $name: there is no NVIDIA GPU here, and a CPU gains nothing by bf16"
            continue
        fi
        now[$name]=${had[$name]:-${default[$name]}}
        if [[ -z ${had[$name]} ]]; then
            say "  set       $name=${now[$name]}"
        else
            say "  kept      $name=${had[$name]}"
        fi
    done
    decide_allocator
}

print_exports() {
    local name
    for name in "${names[@]}"; do
        [[ -z ${now[$name]-} ]] || printf 'export %s=%s\n' "$name" "$(quoted "${now[$name]}")"
    done
}

# undo NAME: lines that take one variable back, unless it has changed since.
undo() {
    local take_back what
    case ${before[$1]} in
        unset) take_back="unset $1" what="unset     $1" ;;
        empty) take_back="export $1=" what="emptied   $1: it was empty" ;;
        private) take_back="if [ -n \"\${ZSH_VERSION-}\" ]; then typeset -g +x $1; else export -n $1; fi"
            what="private   $1: it was not exported" ;;
    esac
    printf '%s\n' "if [ \"\${$1-}\" = ${ours[$1]@Q} ]; then $take_back; printf '%s\\n' '  $what' >&2" \
        "else printf '%s\\n' '  left      $1: it has changed since' >&2; fi"
}

# read_notes NOTES: what earlier sourcings in this shell did.
read_notes() {
    local name state value
    while read -r name state value; do
        [[ -z $name ]] || eval "ours[$name]=$value before[$name]=$state"
    done <<<"$1"
}

# Exports, notes for the next sourcing, and the way back, as lines for the caller's shell.
print_for_sourcing() {
    local name notes="" body=""
    for name in "${names[@]}"; do
        if [[ -z ${had[$name]} && -n ${now[$name]-} ]]; then
            ours[$name]=${now[$name]} before[$name]=unset
            [[ ! -v $name ]] || before[$name]=empty
            printf 'export %s=%s\n' "$name" "$(quoted "${now[$name]}")"
        elif [[ -n ${had[$name]} && ! -v $name ]]; then
            ours[$name]=${had[$name]} before[$name]=private
            say "  exported  $name, which you had set but not exported"
            printf 'export %s\n' "$name"
        fi
        [[ -n ${ours[$name]-} ]] || continue
        body+=$(undo "$name")$'\n'
        notes+="$name ${before[$name]} ${ours[$name]@Q}"$'\n'
    done
    printf 'typeset -g _gh200_env_state=%s\n' "${notes@Q}"
    printf '%s\n' 'gh200_env_deactivate() {' "printf '%s\\n' 'GH200 environment, taken back:' >&2" "$body" \
        'unset _gh200_env_state' 'unset -f gh200_env_deactivate' '}'
    say "  undo      gh200_env_deactivate"
}

# answer_sourcing COUNT FIRST NOTES VALUE...: COUNT and FIRST are about the caller's arguments.
answer_sourcing() {
    local count=$1 first=$2 notes=$3 name text
    shift 3
    for name in "${names[@]}"; do had[$name]=$1 && shift; done
    read_notes "$notes"
    # A file sourced without arguments sees those of its caller, so only a lone one of ours is taken as meant for us.
    case $count:$first in
        1:--help | 1:-h) text=$(usage) ;;
        1:--print)
            decide
            text=$(print_exports)
            ;;
        *)
            ((count == 0)) || say "note: arguments are ignored when sourced, except a lone --print or --help"
            decide
            print_for_sourcing
            return
            ;;
    esac
    printf "printf '%%s\\\\n' %s\n" "${text@Q}"
}

if [[ ${1-} == --for-sourcing ]]; then
    shift
    answer_sourcing "$@"
    exit
fi
(($# < 2)) || reject "one argument at most, got: $*" "scripts/setup_gh200_env.sh --help"
case ${1-} in
    --help | -h) usage ;;
    --print)
        for name in "${names[@]}"; do had[$name]=${!name-}; done
        decide
        print_exports
        ;;
    "") reject "this file has to be sourced: a program cannot set variables in your shell" \
        "source scripts/setup_gh200_env.sh, or: eval \"\$(scripts/setup_gh200_env.sh --print)\"" ;;
    *) reject "unknown argument: $1" "scripts/setup_gh200_env.sh --help" ;;
esac
