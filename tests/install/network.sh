#!/bin/bash
# Proves that the five commands of docs/using.md, "Over the network", work between hosts. The daemons run in one network
# namespace and the last command in another, with an address that both can reach, and with a secret as docs/network.md
# requires. Without the right to create network namespaces, the script prints a message and tests nothing.
set -euo pipefail
if [ "${1:-}" != inside ]; then
    if ! unshare --net true 2>/dev/null; then
        echo "network: network namespaces cannot be created on this machine, so nothing was tested"
        exit 0
    fi
    exec unshare --net "$0" inside
fi

work=$(mktemp -d)
memory=$(mktemp -d /dev/shm/farindex-readme-XXXXXX)
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work" "$memory"' EXIT
unshare --net sleep 600 &
elsewhere=$!
ip link set lo up
ip link add here type veth peer name there
until ip link set there netns $elsewhere 2>/dev/null; do # fails until the process has entered its namespace
    kill -0 $elsewhere
    sleep 0.01
done
ip addr add 10.78.0.1/24 dev here
ip link set here up
nsenter --target $elsewhere --net ip addr add 10.78.0.2/24 dev there
nsenter --target $elsewhere --net ip link set there up

head -c 32 /dev/urandom >"$work/secret"
chmod 600 "$work/secret"
export FARINDEX_SECRET=$work/secret
mkdir "$work/bin"
ln -s "$BUILD/farindex" "$work/bin/farindex"
export PATH=$work/bin:$PATH

mapfile -t commands < <(sed -n '/^## Over the network/,/^## /p' "$SOURCE/docs/using.md" | sed -n '/^```sh/,/^```/p' |
    sed '/^```/d; s/127\.0\.0\.1/10.78.0.1/g; s|/dev/shm|'"$memory"'|g')
[ ${#commands[@]} = 5 ] || { echo "docs/using.md has ${#commands[@]} commands in that section, not 5"; exit 1; }

# serve COMMAND NUMBER: starts a daemon with the secret and waits until it is ready
serve() {
    eval "${1% &} --secret '$work/secret' --size 16M >'$work/ready$2' 2>/dev/null &"
    until grep -q ready "$work/ready$2"; do
        sleep 0.01
    done
}

serve "${commands[0]}" 1
serve "${commands[1]}" 2
eval "${commands[2]}"
eval "${commands[3]}"
got=$(nsenter --target $elsewhere --net bash -c "${commands[4]}")
[ "$got" = red ] || { echo "'${commands[4]}' in another namespace gave '$got', not 'red'"; exit 1; }
echo "network: ok"
