#!/bin/bash
# Proves that an installed farindex can be moved to another folder, that pkg-config and CMake find it, and that programs
# can be linked with the shared and with the static library.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/user.c" <<'CODE'
#include <farindex.h>
#include <stdio.h>
#include <string.h>

/* Stores a pair in an embedded pool and reads it back. */
static int use_it(void) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    char value[8];
    size_t length = 0;
    if (far_pool_open("local:64M", NULL, &pool) || far_session_open(pool, &session) ||
        far_index_create(session, "map", "toy", NULL, &index))
        return -1;
    int err = far_put(session, index, "key", 3, "value", 5);
    if (!err)
        err = far_get(session, index, "key", 3, value, sizeof value, &length);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return err || length != 5 || memcmp(value, "value", 5);
}

int main(void) {
    char header[32];
    if (use_it() != 0) {
        puts(far_last_error());
        return 1;
    }
    snprintf(header, sizeof header, "%d.%d.%d", FAR_VERSION_MAJOR, FAR_VERSION_MINOR, FAR_VERSION_PATCH);
    puts(far_version());
    return strcmp(header, far_version()) != 0 || strcmp(far_strerror(FAR_ERR_NOT_FOUND), "not found") != 0;
}
CODE

"$CMAKE" --install "$BUILD" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/second" # no installed file may contain the path to which it was installed
pc=$(find "$work/second" -name farindex.pc)
export PKG_CONFIG_PATH=${pc%/*}
libdir=$(pkg-config --variable=libdir farindex)
[ -f "$libdir/libfarindex.a" ] && [ -L "$libdir/libfarindex.so" ] && [ -f "$work/second/include/farindex.h" ]
[ "$(find "$work/second/include" -type f | wc -l)" = 1 ] || { echo "more than one header is installed"; exit 1; }
if [ -x "$BUILD/farindex" ]; then
    "$work/second/bin/farindex" --version | grep -qF "$(pkg-config --modversion farindex)"
fi

# A program needs the include path of farindex, but not those of the libraries that farindex uses internally.
flags=$(pkg-config --cflags farindex)
[ "$(wc -w <<<"$flags")" = 1 ] || { echo "pkg-config --cflags has more than one include path: $flags"; exit 1; }

needs_shared_library() {
    readelf -d "$1" | grep -q 'NEEDED.*libfarindex\.so'
}

$CC -Wall -Wextra -Werror "$work/user.c" -o "$work/shared" $(pkg-config --cflags --libs farindex)
needs_shared_library "$work/shared" || { echo "the shared library is not used"; exit 1; }
[ "$(LD_LIBRARY_PATH=$libdir "$work/shared")" = "$(pkg-config --modversion farindex)" ]

# A CMake project finds the installed files, and can link both libraries.
mkdir "$work/project"
cat >"$work/project/CMakeLists.txt" <<'CODE'
cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES C)
find_package(farindex ${WANTED} REQUIRED)
add_executable(dynamic ../user.c)
target_link_libraries(dynamic PRIVATE farindex::farindex)
add_executable(fixed ../user.c)
target_link_libraries(fixed PRIVATE farindex::static)
CODE
version=$(pkg-config --modversion farindex)
CC=${CC%% *} "$CMAKE" -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$work/second" -DWANTED="$version" \
    -DCMAKE_C_FLAGS="${CC#"${CC%% *}"}" >"$work/log" 2>&1 && "$CMAKE" --build "$work/project/build" >>"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
needs_shared_library "$work/project/build/dynamic" || { echo "the CMake target is not the shared library"; exit 1; }
! needs_shared_library "$work/project/build/fixed" || { echo "the static CMake target is not static"; exit 1; }
[ "$("$work/project/build/dynamic")-$("$work/project/build/fixed")" = "$version-$version" ]
! "$CMAKE" -S "$work/project" -B "$work/project/other" -DCMAKE_PREFIX_PATH="$work/second" -DWANTED=99 >/dev/null 2>&1 ||
    { echo "find_package accepts a wrong version"; exit 1; }

rm "$libdir"/libfarindex.so*
$CC -Wall -Wextra -Werror "$work/user.c" -o "$work/static" $(pkg-config --static --cflags --libs farindex)
! needs_shared_library "$work/static" || { echo "the static library is not used"; exit 1; }
[ "$("$work/static")" = "$(pkg-config --modversion farindex)" ]
