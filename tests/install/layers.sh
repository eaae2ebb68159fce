#!/bin/bash
# Proves that the folders of src/ point one way: a file includes, and its object refers to, only what stands in its own
# folder or in one further down. A kind of index stands on its own folder and on the headers that src/index/README.md
# lists.
set -euo pipefail
export LC_ALL=C
layers=(base fabric task pool index client workload verify cli) # each may use those before it
kind_headers=$(sed -n 's/^| `\([a-z_]*\/[a-z_]*\.h\)`.*/\1/p' "$SOURCE/src/index/README.md")
failed=0

rank() {
    local i
    for i in "${!layers[@]}"; do
        [ "${layers[$i]}" != "$1" ] || { echo "$i"; return; }
    done
    echo "src/$1 has no place in the order of layers" >&2
    exit 1
}

includes=0
for folder in "$SOURCE"/src/*/; do
    folder=$(basename "$folder")
    own=$(rank "$folder")
    while IFS=: read -r file line; do
        included=${line#*\"} included=${included%\"*}
        target=${included%%/*}
        [ -d "$SOURCE/src/$target" ] || continue
        includes=$((includes + 1))
        if [ "$(rank "$target")" -gt "$own" ]; then
            echo "src/${file#"$SOURCE/src/"} includes $included, which stands above it"
            failed=1
        fi
    done < <(grep -rE '^#include "' "$SOURCE/src/$folder" --include='*.[ch]')
done
[ "$includes" -gt 500 ] || { echo "the includes were not found"; exit 1; }

[ "$(wc -w <<<"$kind_headers")" -ge 8 ] || { echo "the headers of a kind were not found in src/index/README.md"; exit 1; }
for kind in "$SOURCE"/src/index/*/; do
    name=$(basename "$kind")
    while IFS=: read -r file line; do
        included=${line#*\"} included=${included%\"*}
        [[ $included == index/$name/* || $included == farindex.h ]] && continue
        grep -qx "$included" <<<"$kind_headers" && continue
        echo "src/${file#"$SOURCE/src/"} includes $included, which src/index/README.md does not list for kinds"
        failed=1
    done < <(grep -rE '^#include "' "$kind" --include='*.[ch]')
done

# Functions called without their header, or declared in a header further down than they are defined.
objects=$BUILD/CMakeFiles/farindex_objects.dir/src
for folder in "${layers[@]}"; do
    [ -d "$objects/$folder" ] || continue
    own=$(rank "$folder")
    find "$SOURCE/src/$folder" \( -name '*.c' -o -name '*.S' \) -printf "$objects/$folder/%P.o\n" |
        xargs -r nm --format=posix -A 2>/dev/null | awk -v own="$own" -v root="$objects/" '
            { object = substr($1, length(root) + 1); sub(/\[.*|:.*/, "", object) }
            $3 == "U" { print "U", $2, own, object }
            $3 ~ /^[TDBRC]$/ { print "D", $2, own, object }'
done | sort | awk '
    $1 == "D" { layer[$2] = $3; home[$2] = $4; defined++ }
    $1 == "U" && ($2 in layer) && layer[$2] > $3 { print "src/" $4 " uses " $2 " of src/" home[$2] ", which stands above it"; wrong = 1 }
    END { if (defined < 500) { print "the symbols were not found"; wrong = 1 } exit wrong }' || failed=1
exit $failed
