#!/bin/bash
# Proves with fake commands how .ci/run combines its three stages: it fails if any of them fails, and it prints one line
# with the reason if the third stage is left out.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{.ci,scripts,bin,build}
cp "$SOURCE/.ci/run" "$work/.ci/"
printf '#!/bin/sh\nexit "$MAKE"\n' >"$work/bin/make"
printf '#!/bin/sh\n[ "$*" = "asan tsan" ] || exit 9\nexit "$FULL"\n' >"$work/scripts/test"
printf '#!/bin/sh\n[ "$DEPS" = 0 ] || echo "deps: no qemu here" >&2\nexit "$DEPS"\n' >"$work/scripts/deps"
printf '#!/bin/sh\n[ "$RDMA" -lt 96 ] || echo "vm: because" >&2\necho "short=$SHORT"\nexit "$RDMA"\n' >"$work/scripts/test-rdma"
chmod +x "$work"/bin/* "$work"/scripts/*

# expect STATUS TEXT MAKE DEPS RDMA [FULL]: .ci/run exits with STATUS and prints TEXT, if `make test`, `scripts/deps
# rdma`, `scripts/test-rdma` and `scripts/test asan tsan` exit with these statuses
expect() {
    local status=0
    said=$(MAKE=$3 DEPS=$4 RDMA=$5 FULL=${6:-0} PATH="$work/bin:$PATH" "$work/.ci/run" 2>&1) || status=$?
    [ "$status" = "$1" ] || { echo "make $3, deps $4, rdma $5: status $status, not $1"; exit 1; }
    [[ $said == *"$2"* ]] || { echo "make $3, deps $4, rdma $5: the output does not contain '$2': $said"; exit 1; }
}

expect 0 'short=1' 0 0 0
expect 2 'short=1' 2 0 0
expect 1 'short=1' 0 0 1
expect 1 'short=1' 0 0 0 1
expect 0 'rdma:// is left out: deps: no qemu here' 0 1 0
expect 2 'rdma:// is left out: deps: no qemu here' 2 1 0
for why in 96 97 98; do
    expect 0 'rdma:// is left out: vm: because' 0 0 $why
    expect 2 'rdma:// is left out: vm: because' 2 0 $why
done
