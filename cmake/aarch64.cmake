# Toolchain file of the cross build for 64-bit ARM. The tests run under the user emulation of qemu. The libraries for
# the target, except for libc, are in FARINDEX_AARCH64_SYSROOT, which scripts/test-aarch64 fills.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_ASM_COMPILER aarch64-linux-gnu-gcc)

get_filename_component(source_folder ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
set(FARINDEX_AARCH64_SYSROOT ${source_folder}/build/aarch64-sysroot CACHE PATH "Folder of the libraries for the target")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FARINDEX_AARCH64_SYSROOT)

set(CMAKE_FIND_ROOT_PATH ${FARINDEX_AARCH64_SYSROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# pkg-config must not find the libraries of the build machine.
set(ENV{PKG_CONFIG_DIR} "")
set(ENV{PKG_CONFIG_PATH} "")
set(ENV{PKG_CONFIG_LIBDIR} ${FARINDEX_AARCH64_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${FARINDEX_AARCH64_SYSROOT})

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
