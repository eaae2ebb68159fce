#!/bin/sh
# Proves that every test, function and file that the pages in docs/races name exists.
# SOURCE: the tree.
set -eu
cd "$SOURCE"
missing=0
for name in $(grep -ho '`[A-Za-z0-9_.]*`' docs/races/*.md | tr -d '`' | sort -u); do
    case "$name" in
    *.c | *.h) [ -n "$(find tests src verify tools bench -name "$name")" ] || { echo "docs/races: there is no file $name"; missing=1; } ;;
    *_*) grep -rqw "$name\|${name}_on\|${name}_told" tests src verify tools bench || { echo "docs/races: there is no identifier $name"; missing=1; } ;;
    esac
done
exit "$missing"
