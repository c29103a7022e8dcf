#!/usr/bin/env bash
# Makes the environments of this checkout from the locks: .venv (everything) or build/tool (the rebase tool alone).
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"
# shellcheck source=scripts/lib/checks.sh
source "$here/lib/checks.sh"
# shellcheck source=scripts/lib/torch.sh
source "$here/lib/torch.sh"
# shellcheck source=scripts/lib/stages.sh
source "$here/lib/stages.sh"

usage() {
    cat <<'HELP'
usage: scripts/setup.sh [--tool-only] [--keep-torch] [--python PATH] [-v] [--help]

Makes .venv from requirements/fork.lock (about 4 GB to download, 7 GB on disk, a minute). A second run only checks
it; one that is broken, half made, moved or older than the lock is made anew. `simpletuner` in .venv/bin is the
fork's.

  --tool-only    only build/tool, what the rebase tool needs: seconds
  --keep-torch   use the torch the chosen Python (or .venv) already has instead of the locked one. Later runs remember
                 it; remove .venv to go back
  --python PATH  the Python 3.12 or 3.13 to use (also: GH200_PYTHON); default: the newest one found
  -v, --verbose  everything uv says; otherwise it is in the log, whose path is shown where something goes wrong
  --help         this text

exit codes: 0 ready, 4 rejected (the message says why and what to do)
HELP
}

home=$(gh200_home)
environment=$home/.venv lock=$home/requirements/fork.lock torch=locked
chosen=${GH200_PYTHON:-}
while (($#)); do
    case $1 in
        --tool-only) environment=$home/build/tool lock=$home/requirements/tool.lock ;;
        --keep-torch) torch=kept ;;
        --python) chosen=${2:-} && shift ;;
        --verbose | -v) export GH200_VERBOSE=1 ;;
        --help | -h) usage && exit ;;
        *) gh200_die "unknown argument: $1" "" "scripts/setup.sh --help" ;;
    esac
    shift || gh200_die "--python needs a path" "" "scripts/setup.sh --help"
done
if [[ $environment == "$home/.venv" ]]; then
    ! grep -qsx 'torch kept' "$environment/.gh200-stamp" || torch=kept
else
    torch=locked
fi
# .venv may be a link to another disk.
place=$(readlink -m "$environment")
[[ -f $lock ]] || gh200_die "$lock is missing" "the environment is made from it" "git checkout -- requirements"

ready() {
    gh200_environment_is_whole "$environment" "$lock" && grep -qx "torch $torch" "$environment/.gh200-stamp" &&
        { [[ -z $chosen ]] || grep -qxF "python $(gh200_python_version "$chosen")" "$environment/.gh200-stamp"; }
}

# Two set-ups at once: the second waits, and then finds the work done.
take_turn() {
    exec 9>"$home/build/.setup.flock"
    flock -n 9 || { gh200_say "another set-up is at work in this checkout; waiting for it" && flock 9; }
}

# Sets `install`, to be called with a Python.
settle_install() { install=("$uv" pip install --no-deps --require-hashes --build-constraints "$lock" -r "$wanted"); }

# plan [--offline]: what uv would do, without doing it
plan() { "${install[@]}" --dry-run --python "$python" --target "$home/build/.plan" "$@" 2>&1; }

# Everything in uv's cache: no network needed. Sets `offline`.
look_ahead() {
    local answer
    offline=(--offline)
    if answer=$(plan --offline) && [[ $answer != *"Would download"* ]]; then return; fi
    offline=()
    answer=$(plan) && return
    printf '%s\n' "$answer" >>"$GH200_LOG"
    if grep -qiE 'error sending request|dns error|connect|timed out|network' <<<"$answer"; then
        gh200_die "the package registry cannot be reached" "uv's cache does not hold all of the locked packages" \
            "connect to a network or set a mirror (UV_DEFAULT_INDEX), once; later set-ups work from the cache"
    fi
    gh200_say "$answer"
    [[ $answer != *"Permission denied"* ]] || gh200_die "uv cannot use its cache" "see its message above" \
        "make $("$uv" cache dir) yours, or name another with UV_CACHE_DIR"
    gh200_die "uv cannot install the lock" "see its message above" "scripts/lock_environment.sh --check shows whether the lock is valid"
}

device() { df -P "$1" | awk 'NR == 2 {print $1}'; }

check_space() {
    local cache disk=${place%/*}
    if [[ $environment != "$home/.venv" ]]; then
        gh200_check_disk "$disk" 1 "the rebase tool's environment"
        return
    fi
    cache=$("$uv" cache dir)
    mkdir -p "$cache"
    if [[ $(device "$cache") != "$(device "$disk")" ]]; then
        gh200_check_disk "$disk" 8 ".venv"
        ((${#offline[@]})) || gh200_check_disk "$cache" 8 "uv's cache"
    elif ((${#offline[@]})); then
        gh200_check_disk "$disk" 1 ".venv (its files are shared with uv's cache)"
    else
        gh200_check_disk "$disk" 10 ".venv and the downloads"
    fi
}

make_environment() {
    local system=() base
    [[ $torch == locked ]] || system=(--system-site-packages)
    # In an activated .venv, the Python on PATH is the one that is about to be removed.
    base=$("$python" -I -c 'import sys; print(sys._base_executable)')
    rm -rf -- "$place"
    "$uv" venv --quiet --no-project --python "$base" "${system[@]}" "$place"
}

site_packages() { "$environment/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

write_paths() {
    local site=$1 fork=$home/build/fork
    [[ ! -f $home/simpletuner/__init__.py ]] || fork=$home
    # Resolved when a process starts: a rebase switches the link, and what runs goes on with the build it began with.
    printf 'import os, sys; sys.path.append(os.path.realpath("%s"))\n' "$fork" >"$site/gh200-fork.pth"
    write_commands "$site"
    if [[ $torch == kept && $owner != "$environment/bin/python" ]]; then
        # An owner that is itself a virtual environment is not covered by --system-site-packages.
        "$owner" -I -c 'import sys, sysconfig
if sys.prefix != sys.base_prefix: print(f"import site; site.addsitedir({sysconfig.get_path("purelib")!r})")' \
            >"$site/gh200-torch.pth"
    fi
}

# into FILE: standard input, in one step, and only where it differs: others may be running it.
into() {
    local text
    text=$(cat)
    [[ -f $1 && $(<"$1") == "$text" ]] || { printf '%s\n' "$text" >"$1.$$" && chmod 755 "$1.$$" && mv -f "$1.$$" "$1"; }
}

# Upstream is never installed, so nothing else makes its command.
write_commands() {
    local site=$1
    # Not the interpreter in the first line: that cannot hold a path with a space. To Python the two lines are a string.
    into "$environment/bin/simpletuner" < <(
        printf "#!/bin/sh\n'''exec' '%s/bin/python' \"\$0\" \"\$@\"\n' '''\n" "$environment"
        cat "$here/lib/venv/simpletuner.py"
    )
    into "$site/gh200_start.py" <"$here/lib/venv/gh200_start.py"
    into "$site/gh200-start.pth" <<<"import gh200_start"
}

# The web page's scripts and styles; without them it asks other hosts, as upstream's does, so nothing stops here.
vendor_page() {
    [[ $environment == "$home/.venv" && -w $home/build && -f $home/requirements/web.json ]] || return 0
    ! cmp -s "$home/requirements/web.json" "$home/build/web/packages.json" || return 0
    local said
    said=$(cd "$home" && "$environment/bin/python" -m gh200_lab.web_assets 2>&1 | tail -n 1) || true
    gh200_say "$(printf '%-16s %s' "web page" "$said")"
}

say_ready() {
    vendor_page
    # Made before there was such a command, or by somebody else.
    [[ $environment != "$home/.venv" || ! -w $environment/bin ]] || write_commands "$(site_packages)"
    gh200_say "$(printf '%-16s %s' "${environment##*/}" "ready: $environment")"
}

# Last of all: an environment without a full stamp is half made, and the next run starts over.
write_stamp() {
    find "$1" -mindepth 1 -maxdepth 1 ! -name __pycache__ -printf '%f\n' >"$environment/.gh200-manifest"
    printf '%s\n' "lock $(gh200_sha256 "$lock")" "place $environment" \
        "python $(gh200_python_version "$environment/bin/python")" "torch $torch" >"$environment/.gh200-stamp.new"
    mv "$environment/.gh200-stamp.new" "$environment/.gh200-stamp"
}

if ready; then
    say_ready
    exit
fi
gh200_check_platform
gh200_check_writable "$home"
take_turn
if ready; then
    say_ready
    exit
fi

gh200_open_log setup
python=$(gh200_find_python "$chosen")
uv=$(gh200_find_uv "$python")
gh200_settle_cache "$uv"
gh200_say "$(printf '%-16s %s' Python "$(gh200_python_version "$python") ($python), $("$uv" --version | cut -d' ' -f1,2)")"
wanted=$lock owner=""
if [[ $torch == kept ]]; then
    owner=$(gh200_torch_owner "$environment" "$python" "$lock")
    wanted=$home/build/beside-torch.lock
    gh200_lock_beside "$owner" "$lock" >"$wanted"
fi
[[ $environment != "$home/.venv" ]] || gh200_check_glibc "$home/requirements/glibc.txt"
settle_install
look_ahead
rm -rf "$home/build/.plan"
check_space
[[ -n $owner && $owner == "$environment/bin/python" ]] || make_environment
# Not whole yet, but a run that ends here must not make the next one forget whose torch this is.
printf 'torch %s\n' "$torch" >"$environment/.gh200-stamp"
# Compiled here: where PYTHONDONTWRITEBYTECODE is set, as images often have it, every process would compile torch anew.
gh200_stage "$python" --counted '^ *Downloaded ' '^ *Downloading ' --done '^Installed .*' packages -- \
    "${install[@]}" --compile-bytecode --python "$environment/bin/python" "${offline[@]}" ||
    gh200_die "could not finish $environment" "see uv's message above" "run it again: what was downloaded is kept"
site=$(site_packages)
[[ $environment != "$home/.venv" ]] || write_paths "$site"
[[ $torch == locked ]] || gh200_show_torch "$environment"
write_stamp "$site"
say_ready
