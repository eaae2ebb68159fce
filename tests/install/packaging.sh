#!/bin/bash
# Proves that make uninstall removes every installed file, that each installed file is in exactly one Debian package,
# and that make bench and make install build only the library and the programs, without cmocka. Also proves that
# the library alone can be built without jansson.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/tree/build"
cp "$SOURCE/Makefile" "$work/tree"
ln -s "$BUILD" "$work/tree/build/release"
old=$(cat "$BUILD/install_manifest.txt" 2>/dev/null || true)
"$CMAKE" --install "$BUILD" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
[ "$(find "$work/prefix" ! -type d | wc -l)" -ge 12 ]
(cd "$work/prefix" && find . ! -type d | sed 's|^\./|usr/|' | sort) >"$work/installed"
make -s -C "$work/tree" uninstall PREFIX="$work/prefix"
left=$(find "$work/prefix" ! -type d)
printf '%s' "$old" >"$BUILD/install_manifest.txt"
[ -z "$left" ] || { printf 'uninstall leaves:\n%s\n' "$left"; exit 1; }

# Each installed file is in one package. The packages have their libraries in lib/TRIPLET.
failed=0
while read -r file; do
    count=0
    for pattern in $(cat "$SOURCE"/debian/*.install); do
        case $file in ${pattern/usr\/lib\/\*\//usr/lib*/} | ${pattern/usr\/lib\/\*\//usr/lib*/}/*) count=$((count + 1)) ;; esac
    done
    [ $count = 1 ] || { echo "$file is in $count packages"; failed=1; }
done <"$work/installed"

# make bench and make install use the preset release, which must work if cmocka is not installed.
printf '#!/bin/sh\ncase "$*" in *cmocka*) exit 1 ;; esac\nexec %s "$@"\n' "$(command -v pkg-config)" >"$work/pkg-config"
chmod +x "$work/pkg-config"
(cd "$SOURCE" && PKG_CONFIG="$work/pkg-config" "$CMAKE" --preset release -B "$work/release") >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
targets=$(ninja -C "$work/release" -t targets all)
grep -q '^farindex: ' <<<"$targets" || { echo "the preset release does not build the command"; failed=1; }
! grep -E '^(test_|.*/tests/)' <<<"$targets" | head -3 | grep . || { echo "the preset release builds tests"; failed=1; }
for goal in bench install; do
    steps=$(make -n -C "$SOURCE" $goal 2>&1)
    grep -q 'preset release' <<<"$steps" && ! grep -qE 'preset (test|asan|tsan)|scripts/deps$' <<<"$steps" ||
        { printf 'make %s does more than it needs:\n%s\n' $goal "$steps"; failed=1; }
done

# The library alone, where jansson cannot be found.
sed -i 's/cmocka/jansson/' "$work/pkg-config"
PKG_CONFIG="$work/pkg-config" "$CMAKE" -S "$SOURCE" -B "$work/library" -G Ninja -DFARINDEX_PROGRAMS=OFF >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
targets=$(ninja -C "$work/library" -t targets all)
grep -q '^libfarindex.so: ' <<<"$targets" || { echo "the library alone is not built without jansson"; failed=1; }
! grep -q '^farindex: ' <<<"$targets" || { echo "FARINDEX_PROGRAMS=OFF builds the command"; failed=1; }
exit $failed
