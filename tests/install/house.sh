#!/bin/bash
# Proves what a newcomer relies on: every source file begins by saying what it is for, every folder with more than ten
# source files has a README, and the files that the pages name are there.
# SOURCE: the tree.
set -euo pipefail
export LC_ALL=C
cd "$SOURCE"
failed=0

complain() {
    echo "$1"
    failed=1
}

sources=0
while read -r file; do
    sources=$((sources + 1))
    case $(head -c 2 "$file") in
    '/*') ;;
    *) complain "$file does not begin with a comment that says what it is for" ;;
    esac
done < <(find src tests examples -name '*.[ch]')
[ "$sources" -gt 500 ] || { echo "the source files were not found"; exit 1; }

for folder in src/*/; do
    count=$(find "$folder" -maxdepth 1 -name '*.[ch]' | wc -l)
    [ "$count" -le 10 ] || [ -f "${folder}README.md" ] || complain "$folder has $count files and no README.md"
done

# `store.c` in the README of its folder, `pool/store.c` or `tests/support/stage.h` anywhere.
named=0
for page in docs/*.md docs/races/*.md src/*/README.md src/index/*/README.md tests/*/README.md CONTRIBUTING.md; do
    while read -r name; do
        named=$((named + 1))
        [ -e "$(dirname "$page")/$name" ] || [ -e "src/$name" ] || [ -e "$name" ] || [ -e "include/$name" ] ||
            [ -n "$(find src tests -path "*/$name")" ] || complain "$page names $name, which is not there"
    done < <(grep -o '`[a-z0-9_/]*\.[ch]`' "$page" | tr -d '`' | sort -u)
done
[ "$named" -gt 100 ] || { echo "the pages name no files"; exit 1; }

# ctest takes no notice of a filter with more than nine groups: all tests would run.
while read -r filter; do
    [ "$(tr -cd '(' <<<"$filter" | wc -c)" -le 9 ] || complain "CMakePresets.json: a filter has more than nine groups: $filter"
done < <(grep '"^test_' CMakePresets.json)
exit $failed
