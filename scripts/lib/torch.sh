# shellcheck shell=bash
# --keep-torch: leave a vendor's or owner's torch, and what was built with it, where it is. Needs bootstrap.sh.

# Never installed from the lock beside a kept torch; nvidia-ml-py only shares the prefix.
GH200_TORCH_ALWAYS='^(torch|torchvision|torchaudio|triton|cuda-toolkit|nvidia-.*)$'
GH200_TORCH_NEVER='^nvidia-ml-py$'
# Compiled against torch or its CUDA: the owner's is left where there is one.
GH200_TORCH_IF_THERE='^(torchao|torchcodec|cuda-bindings|cuda-pathfinder)$'

# gh200_installed PYTHON [own]: names of the packages it sees, as the lock spells them, each with its version.
# With `own`, only those inside its own environment, not what shines through from the system.
gh200_installed() {
    "$1" -I -c '
import re, sys
from importlib.metadata import distributions
own_only = "own" in sys.argv
for found in distributions():
    name = found.metadata["Name"]
    if name and (not own_only or str(found.locate_file("")).startswith(sys.prefix)):
        print(re.sub(r"[-_.]+", "-", name).lower(), found.version)' "${2:-}"
}

gh200_torch_version() { gh200_installed "$@" 2>/dev/null | awk '$1 == "torch" {print $2}' || true; }

gh200_locked_version() { sed -n "s/^$1==\([^ ;]*\).*/\1/p" "$2"; }

# gh200_lock_beside PYTHON LOCK: the lock without the packages that stay the owner's.
gh200_lock_beside() {
    {
        awk -F= -v always="$GH200_TORCH_ALWAYS" -v never="$GH200_TORCH_NEVER" '$1 ~ always && $1 !~ never {print $1}' "$2"
        gh200_installed "$1" | awk -v there="$GH200_TORCH_IF_THERE" '$1 ~ there {print $1}'
    } | awk 'NR == FNR {owned[$1]; next} /^[a-z0-9]/ {split($1, pin, "=="); skip = pin[1] in owned} !skip' - "$2"
}

# gh200_torch_owner ENVIRONMENT PYTHON LOCK: which interpreter has the torch to keep; a torch put into .venv by hand first.
gh200_torch_owner() {
    local environment=$1 python=$2 lock=$3 version
    version=$(gh200_torch_version "$environment/bin/python" own)
    if [[ -n $version && $version != "$(gh200_locked_version torch "$lock")" ]]; then
        printf '%s\n' "$environment/bin/python"
    elif [[ -n $(gh200_torch_version "$python") ]]; then
        printf '%s\n' "$python"
    else
        gh200_die "there is no torch to keep" "$python has none, and .venv has none of its own but the locked one" \
            "name the Python that has it with --python PATH, or leave out --keep-torch"
    fi
}

# gh200_show_torch ENVIRONMENT
gh200_show_torch() {
    local name installed
    "$1/bin/python" -c 'import torch; print("kept torch", torch.__version__, "from", torch.__path__[0])' >&2 ||
        gh200_die "the kept torch does not import in .venv" "see the message above" \
            "repair that torch, or remove .venv and run scripts/setup.sh without --keep-torch"
    installed=$(gh200_installed "$1/bin/python")
    for name in torchvision torchaudio; do
        grep -q "^$name " <<<"$installed" ||
            gh200_say "warning: $name is missing; install a build made for this torch beside it, upstream imports it"
    done
}
