#!/bin/bash
# Proves that users find every option of an index kind, and that a test sets it. `farindex kinds` must describe each
# option that it lists. The README of the kind, or for the options of all kinds farindex.h, must name it. A test must
# contain it as OPTION=VALUE. The number of options is limited, because an option must reproduce a figure of the kind's
# paper or serve a user.
# SOURCE: the tree. BUILD: the build folder.
set -euo pipefail
cd "$SOURCE"
failed=0 options=0

complain() {
    echo "$1"
    failed=1
}

# rows: prints a line "KIND OPTION DESCRIPTION" for each option
rows() {
    "$BUILD/farindex" kinds --json | sed 's/{"kind":/\n&/g; s/{"name":/\n&/g' | sed -nE '
        s/^\{"kind":"([a-z]*)".*/\1/; t kind
        s/^\{"name":"([a-z0-9_]*)".*"help":"([^"]*)".*/\1 \2/; t option
        b
        :kind
        h; b
        :option
        G; s/^(.*)\n(.*)$/\2 \1/p'
}

while read -r kind option description; do
    options=$((options + 1))
    [ -n "$description" ] || complain "farindex kinds does not describe the option $option of $kind"
    case $option in
    key_size | value_size | max_key | checksum) tests=(tests) page=include/farindex.h ;;
    *) tests=(tests/index/"$kind" tests/index/*.c tests/conformance tests/verify tests/bench) page=src/index/$kind/README.md ;;
    esac
    grep -rqE "(^|[^a-z_])$option=" "${tests[@]}" || complain "no test sets the option $option of $kind"
    grep -rqE "(^|[^a-z_])$option([^a-z_]|\$)" "$page" || complain "$page does not name the option $option of $kind"
done < <(rows)
[ "$options" -ge 50 ] || complain "farindex kinds lists only $options options"
[ "$options" -le 75 ] || complain "farindex kinds lists $options options, which are more than 75"
exit $failed
