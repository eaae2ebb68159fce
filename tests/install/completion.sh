#!/bin/bash
# Proves that bash completes commands, options, kinds and the indexes of a pool, and that looking makes no pool.
set -euo pipefail
work=$(mktemp -d)
pool=/dev/shm/farindex-completion-$$
trap 'rm -rf "$work" "$pool"' EXIT
ln -s "$BUILD/farindex" "$work/farindex"
PATH=$work:$PATH
export FARINDEX_POOL="shm:$pool?size=16M"
source "$SOURCE/completions/farindex.bash"

# expect REPLIES WORD..: completing the last word gives these
expect() {
    local wanted=$1
    shift
    COMP_WORDS=(farindex "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _farindex || true # its status means nothing
    [ "${COMPREPLY[*]}" = "$wanted" ] || { printf '%s\n  gives: %s\n  not:   %s\n' "$*" "${COMPREPLY[*]}" "$wanted"; exit 1; }
}

expect "" get ""
[ ! -e "$pool" ] || { echo "completion has made a pool"; exit 1; }
farindex create fruit dart 2>/dev/null
farindex create 'two words' dart
expect "check" ch
expect "check copy create" c
expect "fruit two\\ words" get ""
expect "fruit" --pool "$FARINDEX_POOL" stat f
expect "shard smart" create new s
expect "dolphin" copy fruit new --kind do
expect "--exact" stat --e
expect "lines" dump fruit --format l
if command -v zsh >/dev/null; then
    zsh -n "$SOURCE/completions/_farindex"
fi
