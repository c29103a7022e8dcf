# shellcheck shell=bash
# Shared by all scripts: where the checkout is, which Python and uv to use, which environment is whole.
# Source it. Every function prints its answer on stdout and messages on stderr.

gh200_say() { printf '%s\n' "$*" >&2; }

# gh200_die WHAT WHY FIX [EXIT_CODE]
gh200_die() {
    gh200_say "error: $1"
    [[ -z ${2:-} ]] || gh200_say "  why: $2"
    [[ -z ${3:-} ]] || gh200_say "  fix: $3"
    exit "${4:-4}"
}

gh200_root() { (CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P); }

# Where there is no HOME, bash asks the password file, as uv and Python do.
gh200_user_home() {
    local directory=~
    printf '%s\n' "$directory"
}

# The checkout that owns the environments: a fork tree in X/build/forks uses those of X.
gh200_home() {
    local root
    root=$(gh200_root)
    if [[ $root == */build/forks/* && -x ${root%/build/forks/*}/scripts/setup.sh ]]; then
        root=${root%/build/forks/*}
    fi
    printf '%s\n' "$root"
}

# Prints the version of a Python the lock is made for; otherwise prints why not and fails.
gh200_python_version() {
    local found
    # Only running it shows this: a pyenv shim exists and is executable, and fails for versions that are not selected.
    if ! found=$("$1" -I -c '
import platform, sys, sysconfig
free_threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(sys.implementation.name, platform.python_version() + free_threaded)' 2>/dev/null); then
        printf 'it does not run\n'
        return 1
    fi
    if [[ ! $found =~ ^cpython\ 3\.1[23]\.[0-9]+$ ]]; then
        printf 'it is %s\n' "$found"
        return 1
    fi
    printf '%s\n' "${found#cpython }"
}

gh200_python_candidates() {
    local name
    for name in python3.13 python3.12 python3 python; do
        type -aP "$name" || true
    done
    local pyenv_root
    pyenv_root=${PYENV_ROOT:-$(gh200_user_home)/.pyenv}
    compgen -G "$pyenv_root/versions/3.13.*/bin/python" || true
    compgen -G "$pyenv_root/versions/3.12.*/bin/python" || true
}

# gh200_find_python [PATH]: a Python 3.12 or 3.13 that runs. An explicit choice ($1 or GH200_PYTHON) is used or rejected.
gh200_find_python() {
    local wanted=${1:-${GH200_PYTHON:-}} candidate answer tried=""
    if [[ -n $wanted ]]; then
        answer=$(gh200_python_version "$wanted") ||
            gh200_die "cannot use $wanted" "$answer" "name a CPython 3.12 or 3.13 with --python or GH200_PYTHON"
        type -P "$wanted"
        return
    fi
    while IFS= read -r candidate; do
        if answer=$(gh200_python_version "$candidate"); then
            printf '%s\n' "$candidate"
            return
        fi
        tried+=$'\n'"       $candidate: $answer"
    done < <(gh200_python_candidates)
    gh200_python_from_uv && return
    gh200_die "no Python 3.12 or 3.13 found" "tried${tried:- nothing: no python on PATH}" \
        "install python3.13 or python3.12 (apt, dnf, pyenv), or let uv do it: uv python install 3.13;"$'\n'"       or name one with --python PATH or GH200_PYTHON"
}

gh200_python_from_uv() {
    local uv version
    uv=$(gh200_find_uv 2>/dev/null) || return 1
    for version in 3.13 3.12; do
        "$uv" python find --no-project --no-python-downloads "$version" 2>/dev/null && return
    done
    gh200_say "no Python 3.12 or 3.13 here; asking uv for one"
    "$uv" python install 3.13 >&2 && "$uv" python find --no-project 3.13
}

# The oldest uv this was tried with; older ones are passed over.
GH200_UV_MINIMUM=0.7.0

gh200_uv_works() {
    local version
    version=$("$1" --version 2>/dev/null) || return 1
    printf '%s\n' "$GH200_UV_MINIMUM" "$(cut -d' ' -f2 <<<"$version")" | sort -V -C
}

# Beside uv's own cache: with a warm one, a fresh clone needs no network.
gh200_cached_uv() { printf '%s\n' "${UV_CACHE_DIR:-${XDG_CACHE_HOME:-$(gh200_user_home)/.cache}/uv}/gh200/uv"; }

# gh200_find_uv [PYTHON]: a uv that runs; installs the locked one into build/uv where there is none.
gh200_find_uv() {
    local home candidate
    home=$(gh200_home)
    for candidate in "$(type -P uv)" "$(gh200_user_home)/.local/bin/uv" "$home/build/uv/uv" "$(gh200_cached_uv)"; do
        if [[ -n $candidate ]] && gh200_uv_works "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    gh200_install_uv "${1:-python3}" "$home" >&2
    printf '%s\n' "$home/build/uv/uv"
}

gh200_install_uv() {
    local python=$1 home=$2 work cached
    gh200_say "$(printf '%-16s %s' uv "installing it into build/uv")"
    mkdir -p "$home/build/uv"
    work=$(mktemp -d "$home/build/uv/new.XXXXXX")
    if ! { "$python" -m venv "$work/env" && "$work/env/bin/python" -m pip install -q --retries 1 --no-deps \
        --require-hashes -r "$home/requirements/installer.lock"; } >"$work/log" 2>&1; then
        tail -n 15 "$work/log" >&2 || true
        rm -rf "$work"
        gh200_die "cannot install uv" "see the messages above: no network, or a Python without venv and pip" \
            "install uv yourself and put it on PATH, or install the python3-venv package of your distribution"
    fi
    # Into place in one step, so that a second set-up never finds half of it.
    mv -f "$work/env/bin/uv" "$home/build/uv/uv"
    rm -rf "$work"
    cached=$(gh200_cached_uv)
    { mkdir -p "${cached%/*}" && cp "$home/build/uv/uv" "$cached.$$" && mv -f "$cached.$$" "$cached"; } 2>/dev/null || true
}

# gh200_settle_cache UV: uv keeps what it downloads below HOME; without one, or a read-only one, in this checkout.
gh200_settle_cache() {
    local cache probe
    # For a user without a home uv answers with a directory of the current one.
    if cache=$("$1" cache dir 2>/dev/null) && [[ $cache == /* || -n ${UV_CACHE_DIR:-} ]] &&
        mkdir -p "$cache" 2>/dev/null && probe=$(mktemp "$cache/.write.XXXXXX" 2>/dev/null); then
        rm -f "$probe"
        return
    fi
    [[ -z ${UV_CACHE_DIR:-} ]] || gh200_die "cannot write in $UV_CACHE_DIR" "UV_CACHE_DIR names it, and it is read-only for $(id -un 2>/dev/null || true)" \
        "make it writable, or unset UV_CACHE_DIR"
    UV_CACHE_DIR=$(gh200_home)/build/uv-cache
    export UV_CACHE_DIR
    gh200_say "$(printf '%-16s %s' cache "build/uv-cache: ${cache:-a directory below HOME} cannot be written to")"
}

gh200_sha256() { sha256sum <"$1" | cut -d' ' -f1; }

# gh200_environment_is_whole DIR LOCK_FILE: its stamp fits this lock and place, its Python runs, nothing is missing.
gh200_environment_is_whole() {
    local directory=$1 lock=$2 version
    [[ -f $directory/.gh200-stamp && -f $directory/.gh200-manifest && -f $lock ]] || return 1
    version=$("$directory/bin/python" -I -c 'import platform; print(platform.python_version())' 2>/dev/null) || return 1
    grep -qxF "lock $(gh200_sha256 "$lock")" "$directory/.gh200-stamp" &&
        grep -qxF "place $directory" "$directory/.gh200-stamp" &&
        grep -qxF "python $version" "$directory/.gh200-stamp" &&
        (cd "$directory/lib/python${version%.*}/site-packages" 2>/dev/null &&
            xargs -d '\n' ls -d -- <"$directory/.gh200-manifest" >/dev/null 2>&1)
}

# A Python that can run the rebase tool: the full environment where there is one, else the small one, made if missing.
gh200_tool_python() {
    local home place
    home=$(gh200_home)
    for place in .venv:fork build/tool:tool; do
        if gh200_environment_is_whole "$home/${place%:*}" "$home/requirements/${place#*:}.lock"; then
            printf '%s\n' "$home/${place%:*}/bin/python"
            return
        fi
    done
    "$home/scripts/setup.sh" --tool-only >&2 || return
    printf '%s\n' "$home/build/tool/bin/python"
}

# gh200_lab MODULE [ARGUMENT...]: becomes that command of the lab, with the environment made first where there is none.
gh200_lab() {
    local home
    home=$(gh200_home)
    gh200_environment_is_whole "$home/.venv" "$home/requirements/fork.lock" || "$home/scripts/setup.sh" >&2
    PYTHONPATH=$(gh200_root)${PYTHONPATH:+:$PYTHONPATH} exec "$home/.venv/bin/python" -m "gh200_lab.$1" "${@:2}"
}
