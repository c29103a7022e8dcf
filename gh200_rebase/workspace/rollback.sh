#!/bin/sh
# Undoes the last GH200 rebase of this tree with plain git.   Usage: sh ROLLBACK.sh [--yes] [DIR]
# Can be repeated after an interruption; what it needs to know is in .git/gh200/ under the backup branch's name.
set -eu

reject() {
    printf '%s\n' "$1" >&2
    [ -z "${2-}" ] || printf '  fix: %s\n' "$2" >&2
    exit 4
}

g() {
    git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.quotePath=false -c gc.auto=0 \
        -c maintenance.auto=false -c advice.detachedHead=false "$@"
}

field() { sed -n "s/^$1: //p" "$run" | head -n 1; }

tip() { g rev-parse --verify --quiet "$1" || echo absent; }

# A branch somebody moved after the run keeps its commits under another name.  REF BEFORE AFTER
keep_moved() {
    now=$(tip "$1")
    case $now in
    "$2" | "$3" | absent) ;;
    *)
        kept=gh200-undone-${backup#gh200-backup-}-${1#refs/heads/}
        g update-ref "refs/heads/$kept" "$now"
        echo "Commits made since then on ${1#refs/heads/} are kept on branch $kept."
        ;;
    esac
}

restore() {
    if [ "$2" != absent ]; then
        g update-ref "$1" "$2"
    elif [ "$(tip "$1")" != absent ]; then
        g update-ref -d "$1"
    fi
}

find_run() {
    store=$(g rev-parse --git-path gh200)
    journal=$store/journal.json
    unfinished=
    if [ -f "$journal" ]; then
        unfinished=1
        backup=$(sed -n 's/.*"backup": "\([^"]*\)".*/\1/p' "$journal")
    elif [ -f MERGE_LOG.txt ]; then
        backup=$(sed -n 's/^Backup branch: //p' MERGE_LOG.txt | head -n 1)
    else
        reject "Nothing to roll back in $(pwd): no MERGE_LOG.txt" "run this in a tree that the rebase tool has changed"
    fi
    run=$store/$backup/run.txt
    if [ -z "$backup" ] || [ ! -f "$run" ]; then
        reject "Nothing to roll back in $(pwd): the run named in MERGE_LOG.txt was not made in this checkout" \
            "run this in the tree where the rebase was made"
    fi
    branch=$(field 'Checked out before')
    before=$(field 'Commit before')
    fork=refs/heads/gh200-reintegration
    fork_before=$(field 'gh200-reintegration before')
    fork_after=$(field 'gh200-reintegration after')
    upstream=refs/heads/upstream
    upstream_before=$(field 'upstream before')
    upstream_after=$(field 'upstream after')
}

check_clean() {
    # A user's own configs stay where they are, or are kept aside where a tree of the run has one.
    changed=$(g status --porcelain --untracked-files=all --ignore-submodules=dirty | grep -v '^?? "\{0,1\}config/' | head -n 10)
    [ -z "$changed" ] || reject "The tree has changes that a rollback would lose:
$changed" "commit them, or put them aside with: git stash -u"
}

ask() {
    printf 'Roll %s back to %s (%s)? [y/N] ' "$(pwd)" "${branch#refs/heads/}" "$before"
    read -r answer || answer=
    case $answer in
    [yY] | [yY][eE][sS]) ;;
    *) reject "Not confirmed: nothing was changed" "answer y, or give --yes" ;;
    esac
}

with_index() { (
    GIT_INDEX_FILE=$scratch/index
    export GIT_INDEX_FILE
    g "$@"
); }

# Sets `way` to what stands where a directory of the path belongs: a file or a link that a checkout would take away.
in_its_way() {
    way=
    parent=$1
    while :; do
        case $parent in */*) parent=${parent%/*} ;; *) return ;; esac
        if [ -L "$parent" ] || { [ -e "$parent" ] && [ ! -d "$parent" ]; }; then way=$parent; fi
    done
}

# What is neither in the tree before nor in the tree after is somebody's work: copied aside before anything is forced.
# Compared by content, in an index of its own: the checkout's may have been told to overlook files.
set_aside() {
    scratch=$store/$backup/scratch
    rm -rf "$scratch"
    mkdir -p "$scratch"
    for tree in "$before" "$fork_after"; do
        with_index read-tree "$tree"
        with_index update-index -q --refresh >/dev/null 2>&1 || :
        with_index ls-files -z | tr '\0' '\n' | sort >"$scratch/has"
        with_index diff-files --name-only -z | tr '\0' '\n' | sort >"$scratch/changed"
        comm -23 "$scratch/has" "$scratch/changed" >>"$scratch/same"
        cat "$scratch/has" >>"$scratch/known"
    done
    for list in same known; do sort -u -o "$scratch/$list" "$scratch/$list"; done
    aside=$store/$backup/aside
    while [ -e "$aside" ]; do aside=$aside.next; done
    comm -23 "$scratch/known" "$scratch/same" | while IFS= read -r path; do
        in_its_way "$path"
        [ -z "$way" ] || path=$way
        [ -e "$path" ] || [ -L "$path" ] || continue
        [ ! -e "$aside/$path" ] && [ ! -L "$aside/$path" ] || continue
        mkdir -p "$aside/$(dirname "./$path")"
        cp -RPp "./$path" "$aside/$path"
        echo "Kept aside, because it is neither the tree before nor the one after: $path is now $aside/$path"
    done
    rm -rf "$scratch"
    for flag in assume-unchanged skip-worktree; do
        g ls-files -v -z | tr '\0' '\n' | sed -n 's/^[a-zS] //p' | tr '\n' '\0' |
            g update-index "--no-$flag" -z --stdin
    done
}

drop_stale_locks() {
    kept=refs/gh200/$backup
    for lock in index HEAD packed-refs "$fork" "$upstream" "refs/heads/$backup" "$branch" \
        "$kept/after" "$kept/gh200-reintegration" "$kept/upstream"; do
        rm -f "$(g rev-parse --git-path "$lock.lock")"
    done
}

# Python's caches would keep directories alive that the run had added.
drop_emptied_directories() {
    g diff --no-renames --diff-filter=D --name-only "$fork_after" "$before" | sed 's,/[^/]*$,,' | sort -ru |
        while IFS= read -r directory; do
            [ -d "$directory" ] || continue
            rm -rf "$directory/__pycache__"
            rmdir -p "$directory" 2>/dev/null || :
        done
}

put_back() {
    printf '{"action": "rollback", "backup": "%s"}\n' "$backup" >"$journal.part"
    mv -f "$journal.part" "$journal"
    [ -z "$unfinished" ] || drop_stale_locks
    set_aside
    if [ -n "$unfinished" ]; then
        # Half a checkout leaves new files git does not know yet: finish it, then every one of them is known.
        g checkout -q -f --detach "$fork_after"
    fi
    keep_moved "$fork" "$fork_before" "$fork_after"
    keep_moved "$upstream" "$upstream_before" "$upstream_after"
    case $branch in detached | "$fork" | "$upstream") ;; *) keep_moved "$branch" "$before" "$before" ;; esac
    if grep -q "^Backup branch: $backup\$" MERGE_LOG.txt 2>/dev/null; then
        # Somebody may have written into them: ticked boxes, notes.
        for name in MERGE_LOG.txt ROLLBACK.sh gh200-current.patch GH200_REBASE_CHECKLIST.md; do
            [ ! -f "$name" ] || cp -p "$name" "$store/$backup/$name"
        done
    fi
    rm -f MERGE_LOG.txt ROLLBACK.sh gh200-current.patch GH200_REBASE_CHECKLIST.md
    g checkout -q -f --detach "$before"
    restore "$fork" "$fork_before"
    restore "$upstream" "$upstream_before"
    if [ "$branch" != detached ]; then
        g update-ref "$branch" "$before"
        g symbolic-ref HEAD "$branch"
    fi
    drop_emptied_directories
    for name in MERGE_LOG.txt ROLLBACK.sh gh200-current.patch GH200_REBASE_CHECKLIST.md; do
        [ ! -f "$store/$backup/kept/$name" ] || cp -p "$store/$backup/kept/$name" "$name"
    done
    for ref in $(g for-each-ref --format='%(refname)' "refs/gh200/$backup"); do g update-ref -d "$ref"; done
    rm -f "$journal"
}

main() {
    yes=
    only_aside=
    directory=$(dirname "$0")
    for argument; do
        case $argument in
        -y | --yes) yes=1 ;;
        --set-aside) only_aside=1 ;;
        -*) reject "Unknown option $argument" "usage: sh ROLLBACK.sh [--yes] [DIR]" ;;
        *) directory=$argument ;;
        esac
    done
    cd "$directory"
    command -v git >/dev/null || reject "git was not found" "install git"
    # shellcheck disable=SC2046
    unset $(git rev-parse --local-env-vars) GIT_NAMESPACE
    [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] ||
        reject "Nothing to roll back: $(pwd) is not the top of a git checkout" "run this in the tree where the rebase was made"
    LC_ALL=C
    export LC_ALL
    find_run
    if [ -n "$only_aside" ]; then
        set_aside
        return
    fi
    [ -n "$unfinished" ] || check_clean
    [ -n "$yes" ] || ask
    put_back
    echo "Rolled back: $(pwd) is on ${branch#refs/heads/} at $before again. Backup branch $backup stays; log and checklist are in $store/$backup."
}

# All of it is read before any of it runs: the checkout may replace this very file.
main "$@"
exit
