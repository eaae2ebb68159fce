#!/bin/bash
# Proves that every field of a structure of src/pool is written by one file. writers.py finds the writes in the syntax
# trees that clang prints. The rules are:
#
# - A write is an assignment, an increment, an atomic store or change, or passing a pointer through which the field can be
#   written. Zeroing a structure when it is allocated is no write.
# - An inline function in a header belongs to the .c file with the same name.
# - The kinds of indexes count as one: a file index/KIND/NAME.c stands for the files NAME.c of all kinds.
# - Values do not count. They are structures that are arguments, results, or copies of words of far memory (the list
#   `values` in writers.py), and parts of local variables. If a value is a field of another structure, a write of it is a
#   write of that field.
# - Locks do not count, because every file that takes a lock changes it.
set -euo pipefail
command -v clang >/dev/null || { echo "LEFT OUT: the writers of fields, because clang is not installed"; exit 0; }

python3 "$SOURCE/tests/install/writers.py" "$SOURCE"

# The check finds a second writer, whether it assigns the field, changes it atomically, or passes on its address.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$SOURCE/src" "$SOURCE/include" "$copy/"
cat >"$copy/src/pool/second_writer.c" <<'C'
#include "pool/alloc/store.h"

void second_writer(far_store *s, far_owned_block *block, int (*change)(uint64_t *bytes)) {
    block->stamp = 1;
    atomic_store_explicit(&s->lists.trim_due, true, memory_order_relaxed);
    change(&s->lists.store_bytes);
    s->pool->epochs.answered++;
}
C
python3 "$SOURCE/tests/install/writers.py" "$copy" >"$copy/out" && { echo "second writers were not found"; exit 1; }
for field in far_owned_block.stamp far_free_lists.trim_due far_free_lists.store_bytes far_epochs.answered; do
    grep -q "^$field is written by .*pool/second_writer.c" "$copy/out" || { echo "a second writer of $field was not found"; exit 1; }
done
[ "$(wc -l <"$copy/out")" = 4 ] || { cat "$copy/out"; exit 1; }
