#!/usr/bin/env bash
# Rewrites requirements/*.lock and glibc.txt from the .in files. Needs the package registry.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/bootstrap.sh
source "$here/lib/bootstrap.sh"

usage() {
    cat <<'HELP'
usage: scripts/lock_environment.sh [--upstream VERSION] [--upgrade] [--check] [--help]

One hashed lock for Linux on x86_64 and aarch64, Python 3.12 and 3.13. Versions stay as they are where the .in files
allow it. Only wheels those machines can use are locked; requirements/sdists.txt lists the exceptions.

  --upstream VERSION  the SimpleTuner release whose dependencies are locked; written into requirements/fork.in
  --upgrade           take the newest versions
  --check             change nothing; exit 1 and show the difference if the locks are not what the .in files give
HELP
}

root=$(gh200_root)
upstream="" check="" upgrade=()
while (($#)); do
    case $1 in
        --upstream) upstream=${2:-} && shift ;;
        --upgrade) upgrade=(--upgrade) ;;
        --check) check=yes ;;
        --help | -h) usage && exit ;;
        *) gh200_die "unknown argument: $1" "" "scripts/lock_environment.sh --help" ;;
    esac
    shift || gh200_die "--upstream needs a version" "" "scripts/lock_environment.sh --help"
done

python=$(gh200_find_python)
uv=$(gh200_find_uv "$python")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# uv reads [tool.uv] environments from the directory it works in.
cp -r "$root/pyproject.toml" "$root/requirements" "$work/"
cd "$work"
[[ -z $upstream ]] || sed -i -E "s/^(simpletuner\[[a-z0-9]+\]==)[^ ;]+/\1$upstream/" requirements/fork.in

compile() {
    "$uv" pip compile --quiet --universal --python "$python" --python-version 3.12 --generate-hashes --no-header \
        --no-annotate "${upgrade[@]}" "requirements/$1.in" -o "requirements/$1.lock" "${@:2}" >/dev/null
}
trim() {
    "$uv" run --quiet --no-project --python "$python" --with pypi-simple --with packaging \
        python "$root/scripts/lock_wheels.py" "requirements/$1.lock" "${@:2}"
}

compile fork --overrides requirements/overrides.txt --no-emit-package simpletuner
trim fork --glibc requirements/glibc.txt --sdists requirements/sdists.txt
for small in tool installer backend; do
    compile "$small"
    trim "$small"
done

if [[ -n $check ]]; then
    diff -ru "$root/requirements" requirements >&2 ||
        gh200_die "the locks are not what the .in files give" "see the difference above" "scripts/lock_environment.sh" 1
    gh200_say "the locks are what the .in files give"
    exit
fi
cp requirements/* "$root/requirements/"
gh200_say "written: requirements/*.lock, requirements/glibc.txt; now scripts/setup.sh, and the tests"
