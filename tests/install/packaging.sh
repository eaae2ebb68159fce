#!/bin/bash
# Proves that what is installed is removed by make uninstall, file by file, and that the Debian packages name all that is
# installed once.
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
exit $failed
