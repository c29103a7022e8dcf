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

# What upstream 4.x asks for (its setup.py; a test compares): the patched builds we know of are older.
GH200_LEAST_TORCH=2.13.0

# Which torch it is, and by what it would go beyond HBM; the allocator itself has to be asked whether it knows the keys.
GH200_WHICH_TORCH='
import sys, torch
core = getattr(torch, "_C", None)
names = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
ask = next((getattr(core, name) for name in names if hasattr(core, name)), None)
try:
    patched = ask is not None and ask("use_uvm:True") is None
except Exception:
    patched = False
print("kept torch", torch.__version__, "from", torch.__path__[0])
print("           ", "a build with use_uvm keys: its allocator goes beyond HBM where they are set" if patched
      else "a build without use_uvm keys: managed_memory goes beyond HBM by pools of torch")
def numbers(version):
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.partition("+")[0].split(".")[:2])
if numbers(torch.__version__) < numbers(sys.argv[1]):
    print(f"warning: SimpleTuner 4.x asks for torch {sys.argv[1]} or newer, and this is {torch.__version__}. Training may stop. "
          "Build the patch again on a newer torch, or leave out --keep-torch: on the locked torch managed_memory needs no patch")'

# gh200_show_torch ENVIRONMENT
gh200_show_torch() {
    local name installed
    "$1/bin/python" -c "$GH200_WHICH_TORCH" "$GH200_LEAST_TORCH" >&2 ||
        gh200_die "the kept torch does not import in .venv" "see the message above" \
            "repair that torch, or remove .venv and run scripts/setup.sh without --keep-torch"
    installed=$(gh200_installed "$1/bin/python")
    for name in torchvision torchaudio; do
        grep -q "^$name " <<<"$installed" ||
            gh200_say "warning: $name is missing; install a build made for this torch beside it, upstream imports it"
    done
}
