#!/bin/bash
# Proves that the folders of src/ are layers: a file includes only headers of its own folder and of lower ones, and its
# object file refers only to symbols of these. A kind of index includes only headers of its own folder and those that
# src/index/README.md lists.
set -euo pipefail
export LC_ALL=C
layers=(base fabric task pool index client) # from the lowest to the highest; each may use those before it
kind_headers=$(sed -n 's/^| `\([a-z_/]*\.h\)`.*/\1/p' "$SOURCE/src/index/README.md")
failed=0

# rank FOLDER: prints the position of the folder in the order of layers
rank() {
    local i
    for i in "${!layers[@]}"; do
        [ "${layers[$i]}" != "$1" ] || { echo "$i"; return; }
    done
    echo "src/$1 is not in the list of layers" >&2
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
            echo "src/${file#"$SOURCE/src/"} includes $included, which belongs to a higher layer"
            failed=1
        fi
    done < <(grep -rE '^#include "' "$SOURCE/src/$folder" --include='*.[ch]')
done
[ "$includes" -gt 500 ] || { echo "the includes were not found"; exit 1; }

[ "$(wc -w <<<"$kind_headers")" -ge 8 ] || { echo "the headers of a kind were not found in src/index/README.md"; exit 1; }
for kind in "$SOURCE"/src/index/*/; do
    name=$(basename "$kind")
    [ "$name" != common ] || continue
    while IFS=: read -r file line; do
        included=${line#*\"} included=${included%\"*}
        [[ $included == index/$name/* || $included == farindex.h ]] && continue
        grep -qx "$included" <<<"$kind_headers" && continue
        echo "src/${file#"$SOURCE/src/"} includes $included, which src/index/README.md does not list for kinds"
        failed=1
    done < <(grep -rE '^#include "' "$kind" --include='*.[ch]')
done

# The symbols are checked too, because a function may be called without its header, or be declared in a header of a
# lower layer.
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
    $1 == "D" { layer[$2] = $3; file[$2] = $4; defined++ }
    $1 == "U" && ($2 in layer) && layer[$2] > $3 { print "src/" $4 " uses " $2 " of src/" file[$2] ", which belongs to a higher layer"; wrong = 1 }
    END { if (defined < 500) { print "the symbols were not found"; wrong = 1 } exit wrong }' || failed=1
exit $failed
