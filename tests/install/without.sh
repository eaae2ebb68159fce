#!/bin/bash
# Proves that what is optional can be left out: sources that ask whether RDMA, TLS, LMDB, Redis, tkrzw, Kyoto Cabinet or libedit are there compile without any of them.
# SOURCE: the tree. CC: the compiler.
set -euo pipefail
cd "$SOURCE"
files=$(grep -rlE '^#ifn?def FARINDEX_(RDMA|TLS|LMDB|REDIS|TKRZW|KYOTOCABINET|EDIT)\b' src tests --include='*.c' | grep -v ^tests/rdma/)
[ "$(wc -w <<<"$files")" -ge 8 ] || { echo "the sources were not found: $files"; exit 1; }
status=0
for file in $files; do
    ${CC:-cc} -fsyntax-only -Wall -Wextra -Werror -std=gnu11 -Iinclude -Isrc -Itests/support '-DFARINDEX_COMMAND="farindex"' "$file" || { echo "$file cannot do without"; status=1; }
done
exit $status
