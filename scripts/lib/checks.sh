# shellcheck shell=bash
# What set-up makes sure of before it writes anything. Needs bootstrap.sh.

gh200_check_platform() {
    case "$(uname -s) $(uname -m)" in
        "Linux x86_64" | "Linux aarch64") ;;
        *) gh200_die "this machine is $(uname -s) $(uname -m)" "the locked environment is for Linux on x86_64 and aarch64" \
            "use such a machine, or a Linux container or virtual machine on this one" ;;
    esac
}

# A real write: permission bits say nothing about a read-only mount, or to root.
gh200_check_writable() {
    local probe
    if ! { mkdir -p "$1/build" && probe=$(mktemp "$1/build/.write.XXXXXX") && rm -f "$probe"; } 2>/dev/null; then
        gh200_die "cannot write in $1" "set-up puts .venv and build into the checkout, which is read-only for $(id -un 2>/dev/null || true)" \
            "make it writable, or clone it to a place that is"
    fi
}

gh200_glibc() { getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2; }

# gh200_check_glibc TABLE [MACHINE] [GLIBC]: reject where a locked wheel needs a newer C library than this machine has.
gh200_check_glibc() {
    local table=$1 machine=${2-$(uname -m)} have=${3-$(gh200_glibc)} package of need newest reasons=""
    newest=$have
    [[ -n $have ]] || gh200_die "this machine has no glibc" "the locked wheels are built for glibc; musl (Alpine) has none" \
        "use a distribution or container with glibc, for example Debian or Ubuntu"
    while read -r package of need; do
        [[ $of == "$machine" ]] || continue
        if ! printf '%s\n' "$need" "$have" | sort -V -C; then
            reasons+=$'\n'"       $package needs glibc $need on $machine"
            newest=$(printf '%s\n' "$need" "$newest" | sort -V | tail -n 1)
        fi
    done < <(grep -v '^#' "$table")
    [[ -z $reasons ]] || gh200_die "this machine's C library is too old: glibc $have" "no older wheel exists:$reasons" \
        "use a distribution with glibc $newest or newer, or a container of one"$'\n'"       (glibc 2.35: Ubuntu 22.04; 2.39: Ubuntu 24.04, RHEL 10; 2.41: Debian 13);"$'\n'"       on a GH200, NVIDIA's PyTorch container on Ubuntu 24.04 together with scripts/setup.sh --keep-torch"
}

# gh200_check_disk DIRECTORY GIGABYTES WHAT_FOR
gh200_check_disk() {
    local free
    free=$(df -Pk "$1" | awk 'NR == 2 {print int($4 / 1048576)}')
    ((free >= $2)) || gh200_die "not enough disk space for $3" "$1 has $free GB free, $2 GB are needed" \
        "free some space there, or use another disk (the checkout may be anywhere; uv's cache: UV_CACHE_DIR)"
}
