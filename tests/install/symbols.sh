#!/bin/bash
# Proves that farindex.h declares exactly the functions that cmake/farindex.map lists and that the shared library
# exports.
set -euo pipefail
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

$CC -E -P "$SOURCE/include/farindex.h" | grep -oE '\bfar_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u >"$work/declared"
sed -n '/global:/,/local:/{s/^ *\([a-z0-9_]*\);$/\1/p}' "$SOURCE/cmake/farindex.map" | sort >"$work/mapped"
nm -D --defined-only --format=posix "$BUILD/libfarindex.so" | awk '$2 != "A" { sub(/@.*/, "", $1); print $1 }' |
    sort -u >"$work/exported"
failed=0

# complain SENTENCE FILE: fails the test and prints the names in FILE, if the file is not empty
complain() {
    if [ -s "$2" ]; then
        printf '%s: %s\n' "$1" "$(tr '\n' ' ' <"$2")"
        failed=1
    fi
}

[ "$(wc -l <"$work/declared")" -ge 29 ] || { echo "the functions of farindex.h were not found"; exit 1; }
comm -23 "$work/declared" "$work/mapped" >"$work/unmapped"
complain "declared in farindex.h, not in cmake/farindex.map" "$work/unmapped"
comm -13 "$work/declared" "$work/mapped" >"$work/undeclared"
complain "in cmake/farindex.map, not declared in farindex.h" "$work/undeclared"
comm -13 "$work/declared" "$work/exported" >"$work/leaked"
complain "exported, not declared in farindex.h" "$work/leaked"
comm -23 "$work/declared" "$work/exported" >"$work/missing"
complain "declared, not exported" "$work/missing"
exit $failed
