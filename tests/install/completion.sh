#!/bin/bash
# Proves that bash and zsh complete commands, options, kinds and the indexes of a pool, and that completion never
# creates a pool.
set -euo pipefail
work=$(mktemp -d)
pool=/dev/shm/farindex-completion-$$
trap 'rm -rf "$work" "$pool"' EXIT
ln -s "$BUILD/farindex" "$work/farindex"
PATH=$work:$PATH
export FARINDEX_POOL="shm:$pool?size=16M"
source "$SOURCE/completions/farindex.bash"

# expect REPLIES WORD..: completing the last word in bash returns these replies
expect() {
    local wanted=$1
    shift
    COMP_LINE="farindex $*"
    COMP_POINT=${#COMP_LINE}
    COMPREPLY=()
    _farindex || true # bash ignores the status
    [ "${COMPREPLY[*]}" = "$wanted" ] || { printf '%s\n  gives: %s\n  not:   %s\n' "$*" "${COMPREPLY[*]}" "$wanted"; exit 1; }
}

expect "" get ""
[ ! -e "$pool" ] || { echo "completion has created a pool"; exit 1; }
farindex create fruit dart 2>/dev/null
farindex create 'two words' dart
expect "check" ch
expect "check copy create" c
expect "copy" help co
expect "fruit two\\ words" get ""
expect "fruit" --pool "$FARINDEX_POOL" stat f
expect "fruit" stat --pool "'$FARINDEX_POOL'" f
expect "fruit" stat --exact --pool="$FARINDEX_POOL" f
expect "fruit" scan --limit 3 f
expect "" scan --limit f
expect "shard smart" create new s
expect "dolphin" copy fruit new --kind do
expect "--exact" stat --e
expect "lines" dump fruit --format l
expect "--salvage" dump fruit --s
expect "--salvage" copy fruit new --s

command -v zsh >/dev/null || { echo "LEFT OUT: completion in zsh: zsh is not installed"; exit 0; }

# expect_zsh REPLIES WORD..: the same in zsh. grep takes the place of zsh's compadd, which selects the replies that
# match the word.
expect_zsh() {
    local wanted=$1 got
    shift
    got=$(FARINDEX_FILE=$SOURCE/completions/_farindex zsh -f -c '
        compadd() { print -rl -- ${(P)2} | grep -e "^${(b)words[CURRENT]}" }
        _files() { print "a file" }
        words=(farindex "$@") CURRENT=$(($# + 1))
        source $FARINDEX_FILE' zsh "$@" | paste -sd' ') || true
    [ "$got" = "$wanted" ] || { printf 'zsh: %s\n  gives: %s\n  not:   %s\n' "$*" "$got" "$wanted"; exit 1; }
}

expect_zsh "check" ch
expect_zsh "check copy create" c
expect_zsh "fruit two words" get ""
expect_zsh "fruit" --pool "$FARINDEX_POOL" stat f
expect_zsh "fruit" stat --pool "'$FARINDEX_POOL'" f
expect_zsh "fruit" stat --exact --pool="$FARINDEX_POOL" f
expect_zsh "fruit" scan --limit 3 f
expect_zsh "copy" help co
expect_zsh "shard smart" create new s
expect_zsh "dolphin" copy fruit new --kind do
expect_zsh "--exact" stat --e
expect_zsh "lines" dump fruit --format l
expect_zsh "a file" load fruit ""

# The way of a user: compinit finds the function through fpath, and a tab on a terminal calls it.
mkdir "$work/functions" "$work/home"
cp "$SOURCE/completions/_farindex" "$work/functions"
HOME=$work/home FUNCTIONS=$work/functions TERM=dumb timeout 60 zsh -f -c '
    zmodload zsh/zpty
    zpty shell "zsh -f -i"
    zpty -w shell "PS1= PS2= ; fpath=($FUNCTIONS \$fpath); autoload -Uz compinit; compinit -u -D; print -r rea\"\"dy"
    zpty -r shell said "*ready*" && zpty -w -n shell "farindex get frui"$'"'\t'"'" apple"
    zpty -r shell said "*fruit*apple*" && zpty -d shell' || { echo "zsh does not complete on a terminal"; exit 1; }
