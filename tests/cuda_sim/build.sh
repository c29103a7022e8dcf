#!/usr/bin/env bash
# build.sh [CC]: compiles the simulated device once per version of its sources and prints the directory of the libraries.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
compiler=${1:-}

if [[ -z $compiler ]]; then
    compiler=$(command -v cc || command -v gcc || command -v clang) || {
        echo "error: the simulated GPU cannot be built: no C compiler on this machine; install the package gcc" >&2
        exit 3
    }
fi

shopt -s nullglob
sources=("$here"/driver/*.c)
version=$(cat "$here"/driver/*.[ch] "${BASH_SOURCE[0]}" | sha256sum | cut -c1-16)
directory=$here/../../build/cuda_sim/$(basename "$compiler")-$version
if [[ -d $directory ]]; then
    realpath "$directory"
    exit
fi

mkdir -p "$(dirname "$directory")"
partial=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$partial"' EXIT
flags=(-std=gnu11 -Wall -Wextra -Werror -O2 -shared -fPIC -fvisibility=hidden)
model=()
for source in "${sources[@]}"; do
    [[ $source == */nvml.c ]] || model+=("$source")
done
"$compiler" "${flags[@]}" -Wl,-soname,libcuda.so.1 -o "$partial/libcuda.so.1" "${model[@]}" -lpthread -ldl
"$compiler" "${flags[@]}" -Wl,-soname,libnvidia-ml.so.1 -o "$partial/libnvidia-ml.so.1" \
    "$here/driver/nvml.c" "$here/driver/settings.c"
# Whoever is first has built it; two at once do no harm.
mv -T "$partial" "$directory" 2>/dev/null || [[ -d $directory ]]
realpath "$directory"
