#!/bin/bash
# Proves that the examples build with the installed library through pkg-config, and print the right results, also
# between processes.
set -euo pipefail
work=$(mktemp -d)
pool=/dev/shm/farindex-examples-$$
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work" "$pool"' EXIT

"$CMAKE" --install "$BUILD" --prefix "$work" >"$work/log" || { cat "$work/log"; exit 1; }
pc=$(find "$work" -name farindex.pc)
export PKG_CONFIG_PATH=${pc%/*} LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(pkg-config --variable=libdir farindex)
for example in quick counter pipeline cursor verbs; do
    $CC -std=gnu11 -Wall -Wextra -Werror "$SOURCE/examples/$example.c" -o "$work/$example" $(pkg-config --cflags --libs farindex)
done

# expect TEXT COMMAND...: the command succeeds, and its last line is TEXT
expect() {
    local words=$1 said
    shift
    said=$("$@") || { printf 'failed: %s\n%s\n' "$*" "$said"; exit 1; }
    [ "${said##*$'\n'}" = "$words" ] || { printf '%s\n  printed:  %s\n  expected: %s\n' "$*" "$said" "$words"; exit 1; }
}

expect "run 1" "$work/quick"
expect "run 1" "$work/quick" "shm:$pool?size=64M"
expect "run 2" "$work/quick" "shm:$pool"
expect "all: 2000" "$work/counter" "shm:$pool" 4 2000
expect "10000 put, 10000 got" "$work/pipeline"
expect "500 put, 500 got" "$work/pipeline" "shm:$pool" 500
expect "2 deleted" "$work/cursor"
"$work/cursor" "shm:$pool" >"$work/scores"
grep -qx "best: Dea (chess/002650/Dea)" "$work/scores"
grep -qx "above: Ben (chess/002100/Ben)" "$work/scores"
grep -qx "below: Ada (chess/001850/Ada)" "$work/scores"
[ "$("$work/verbs" all | grep -c 'round trips')" = 34 ] || { echo "verbs does not print 34 operations"; exit 1; }
expect "check: 0 problems, 0 leaked bytes" "$work/bin/farindex" check --pool "shm:$pool"

# The same on memory nodes over the network.
for node in 1 2; do
    "$work/bin/farindex" serve --listen 127.0.0.1:0 --size 32M >"$work/node$node" 2>/dev/null &
    until grep -q ready "$work/node$node"; do
        kill -0 $!
        sleep 0.01
    done
done
tcp=tcp://$(sed 's/ready: //' "$work/node1"),$(sed 's/ready: //' "$work/node2")
expect "run 1" "$work/quick" "$tcp"
expect "run 2" "$work/quick" "$tcp"
expect "all: 200" "$work/counter" "$tcp" 4 200
expect "500 put, 500 got" "$work/pipeline" "$tcp" 500
expect "2 deleted" "$work/cursor" "$tcp"
expect "check: 0 problems, 0 leaked bytes" "$work/bin/farindex" check --pool "$tcp"

# The manual pages are installed, and farindex.3 describes every function.
for page in man1/farindex.1 man3/farindex.3; do
    found=$(find "$work" -path "*/man/$page")
    [ -n "$found" ] || { echo "$page is not installed"; exit 1; }
    grep -q '^\.TH FARINDEX' "$found"
done
while read -r function; do
    grep -q "\b$function\b" "$(find "$work" -name farindex.3)" || { echo "farindex.3 does not describe $function"; exit 1; }
done < <(sed -n '/global:/,/local:/{s/^ *\([a-z0-9_]*\);$/\1/p}' "$SOURCE/cmake/farindex.map")
