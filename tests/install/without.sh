#!/bin/bash
# Proves that the optional libraries are optional: every source file that has code for RDMA, TLS, LMDB, Redis, tkrzw,
# Kyoto Cabinet, libedit or libmicrohttpd compiles without all of them. SOURCE: the tree. CC: the compiler.
set -euo pipefail
cd "$SOURCE"
files=$(grep -rlE '^#ifn?def FARINDEX_(RDMA|TLS|LMDB|REDIS|TKRZW|KYOTOCABINET|EDIT|METRICS)\b' src tools bench tests --include='*.c' | grep -vE '^tests/fabric/rdma/test_rdma(_kills)?.c')
[ "$(wc -w <<<"$files")" -ge 8 ] || { echo "the sources were not found: $files"; exit 1; }
status=0
for file in $files; do
    ${CC:-cc} -fsyntax-only -Wall -Wextra -Werror -std=gnu11 -Iinclude -Isrc -I. -Itests/support '-DFARINDEX_COMMAND="farindex"' "$file" || { echo "$file does not compile without the optional libraries"; status=1; }
done
exit $status
