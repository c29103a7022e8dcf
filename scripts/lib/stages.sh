# shellcheck shell=bash
# One line per stage, the rest in a log. Needs bootstrap.sh. A script that another one calls goes on in that one's log.

# gh200_open_log NAME: build/logs/NAME-TIME.log, of which the last ten are kept. GH200_VERBOSE=1 shows everything.
gh200_open_log() {
    local directory
    [[ -z ${GH200_LOG:-} ]] || return 0
    directory=$(gh200_home)/build/logs
    mkdir -p "$directory"
    # Two at once have two logs.
    GH200_LOG=$directory/$1-$(date +%Y%m%d-%H%M%S)-$$.log
    : >"$GH200_LOG"
    export GH200_LOG
    find "$directory" -name "$1-*.log" -printf '%T@ %p\n' | sort -rn | sed -e '1,10d' -e 's/^[^ ]* //' |
        while IFS= read -r old; do rm -f -- "$old"; done
}

# gh200_stage PYTHON [OPTION...] TITLE -- COMMAND...: see gh200_lab/stages.py
gh200_stage() {
    local python=$1 verbose=()
    shift
    [[ -z ${GH200_VERBOSE:-} ]] || verbose=(--verbose)
    "$python" -I "$(gh200_root)/gh200_lab/stages.py" --log "$GH200_LOG" "${verbose[@]}" "$@"
}

# gh200_stage_fork PYTHON: build/fork of this checkout; quick where nothing has changed.
gh200_stage_fork() {
    gh200_stage "$1" --done 'the fork of .*' fork -- "$(gh200_root)/execute_gh200_rebase.sh" --skip-tests
}

gh200_log_path() { realpath --relative-to=. -- "$GH200_LOG"; }
