#!/bin/bash
# Proves that farindex.h compiles alone in C and C++, and that the example at its top compiles.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
strict=(-Wall -Wextra -Werror -pedantic -fsyntax-only -I "$SOURCE/include")

printf '#include <farindex.h>\n#include <farindex.h>\n' >"$work/alone.c"
for standard in c99 c11; do
    $CC -std=$standard "${strict[@]}" "$work/alone.c"
done

if command -v g++ >/dev/null; then
    cp "$work/alone.c" "$work/alone.cc"
    cat >>"$work/alone.cc" <<'CODE'
extern "C" int far_pool_poll(far_pool *pool);
far_pool_options options = FAR_POOL_OPTIONS_INIT;
CODE
    for standard in c++11 c++17; do
        g++ -std=$standard "${strict[@]}" "$work/alone.cc"
    done
else
    echo "LEFT OUT: the header in C++: g++ is not installed"
fi

sed -n '/^ \* QUICK START$/,/^ \* Build it with/{s/^ \*     //p}' "$SOURCE/include/farindex.h" >"$work/example.c"
grep -q 'int main' "$work/example.c"
$CC -std=c11 "${strict[@]}" "$work/example.c"
