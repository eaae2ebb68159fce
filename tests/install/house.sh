#!/bin/bash
# Proves the rules of the house on which a newcomer relies:
#   - every source file begins with a comment that says what the file is for;
#   - every folder with more than ten .c and .h files has a README.md, which names each of these files;
#   - every file that a page names exists, and so does every function at which the guide sets a breakpoint.
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
    *) complain "$file does not begin with a comment that says what the file is for" ;;
    esac
done < <(find src tools bench verify workload tests examples -name '*.[ch]')
[ "$sources" -gt 500 ] || { echo "only $sources source files were found"; exit 1; }

# The README of a folder names a file as `file.c`, or as `folder/file.c`.
listed=0
for folder in $(find src tools bench verify workload -type d); do
    mapfile -t files < <(find "$folder" -maxdepth 1 -name '*.[ch]' -printf '%f\n' | sort)
    [ ${#files[@]} -gt 10 ] || continue
    [ -f "$folder/README.md" ] || { complain "$folder has ${#files[@]} source files and no README.md"; continue; }
    for file in "${files[@]}"; do
        listed=$((listed + 1))
        grep -qE "\`([a-z0-9_]+/)*${file/./\\.}\`" "$folder/README.md" || complain "$folder/README.md does not name $file"
    done
done
[ "$listed" -gt 100 ] || { echo "only $listed files in folders with a README.md were found"; exit 1; }

# A page names a file relative to its own folder, to src/ or include/, or to the tree; or by the end of its path.
named=0
for page in docs/*.md docs/guide/*.md docs/races/*.md $(find src tools bench verify workload tests -name README.md) CONTRIBUTING.md; do
    while read -r name; do
        named=$((named + 1))
        [ -e "$(dirname "$page")/$name" ] || [ -e "src/$name" ] || [ -e "$name" ] || [ -e "include/$name" ] ||
            [ -n "$(find src tools bench verify workload tests -path "*/$name")" ] || complain "$page names $name, which does not exist"
    done < <(grep -o '`[a-z0-9_/]*\.[ch]`' "$page" | tr -d '`' | sort -u)
done
[ "$named" -gt 100 ] || { echo "only $named names of files were found in the pages"; exit 1; }

# The gdb scripts and commands of the guide have `dprintf FUNCTION,...` and `break FUNCTION`.
functions=$(sed -nE "s/^(dprintf|break) ([a-z_0-9]+).*/\2/p; s/.*-ex 'break ([a-z_0-9]+)'.*/\1/p" docs/guide/*.md | sort -u)
[ "$(wc -w <<<"$functions")" -ge 15 ] || { echo "the breakpoints of docs/guide were not found: $functions"; exit 1; }
for function in $functions; do
    grep -rqE "\b$function\(" src examples --include='*.c' || complain "docs/guide sets a breakpoint at $function, which does not exist"
done

# ctest ignores a filter with more than nine groups and would run all tests.
while read -r filter; do
    [ "$(tr -cd '(' <<<"$filter" | wc -c)" -le 9 ] || complain "CMakePresets.json: a filter has more than nine groups: $filter"
done < <(grep '"^test_' CMakePresets.json)
exit $failed
