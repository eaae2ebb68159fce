#!/bin/sh
# Every test that docs/races names exists, so that the pages do not outlive what they describe.
# SOURCE: the tree.
set -eu
cd "$SOURCE"
missing=0
for name in $(grep -ho '`[A-Za-z0-9_.]*`' docs/races/*.md | tr -d '`' | sort -u); do
    case "$name" in
    *.c | *.h) [ -n "$(find tests src -name "$name")" ] || { echo "docs/races: there is no file $name"; missing=1; } ;;
    *_*) grep -rqw "$name\|${name}_on\|${name}_told" tests src || { echo "docs/races: nothing is called $name"; missing=1; } ;;
    esac
done
exit "$missing"
