#!/bin/bash
# Proves that what is installed is removed by make uninstall, file by file, that the Debian packages name all that is
# installed once, and that make bench and make install build nothing but the library and the command, without cmocka.
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

# Each installed file is in one package; libraries lie below lib/TRIPLET there.
failed=0
while read -r file; do
    count=0
    for pattern in $(cat "$SOURCE"/debian/*.install); do
        case $file in ${pattern/usr\/lib\/\*\//usr/lib*/} | ${pattern/usr\/lib\/\*\//usr/lib*/}/*) count=$((count + 1)) ;; esac
    done
    [ $count = 1 ] || { echo "$file is in $count packages"; failed=1; }
done <"$work/installed"

# The preset of make bench and make install, where cmocka cannot be found.
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
exit $failed
