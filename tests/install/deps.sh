#!/bin/bash
# Proves what scripts/deps does, with a make-believe package manager: it says nothing when all is there, installs
# exactly what is missing as root or with sudo, and names what is missing when it cannot install.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
for tool in bash env cat; do
    ln -s "$(command -v $tool)" "$work/bin/$tool"
done

# fake NAME: the script on stdin becomes the command NAME
fake() {
    { echo '#!/bin/bash'; cat; } >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

fake dpkg-query <<'CODE'
package=${*: -1}
case " $MISSING " in *" $package "*) exit 1 ;; esac
printf 'install ok installed'
CODE
fake apt-get <<'CODE'
echo "${AS:-}apt-get $*" >>"$LOG"
exit "${APT_RESULT:-0}"
CODE
fake id <<'CODE'
echo "$USER_ID"
CODE

# run: runs scripts/deps among the fakes; sets status, said (stdout and stderr) and did (calls of apt-get)
run() {
    : >"$work/log"
    status=0
    said=$(env PATH="$work/bin" LOG="$work/log" "$@" "$SOURCE/scripts/deps" ${purpose:-} 2>&1) || status=$?
    did=$(cat "$work/log")
}

# expect WHAT CONDITION...
expect() {
    local what=$1
    shift
    "$@" || { printf 'not so: %s\nstatus %s, said: %s\ndid: %s\n' "$what" "$status" "$said" "$did"; exit 1; }
}

run MISSING= USER_ID=0
expect "all there: silent, nothing done" [ "$status-$said-$did" = "0--" ]

run MISSING="cmake libxxhash-dev" USER_ID=0
expect "root: succeeds" [ "$status" = 0 ]
expect "root: updates first" [ "${did%%$'\n'*}" = "apt-get update -qq" ]
expect "root: installs what is missing and nothing else" [ "${did##*-y -qq }" = "cmake libxxhash-dev" ]

run MISSING="clang" USER_ID=1000
expect "neither root nor sudo: fails, does nothing" [ "$status-$did" = "1-" ]
expect "neither root nor sudo: names the package" [ "${said/clang/}" != "$said" ]

run MISSING="clang" USER_ID=0 APT_RESULT=100
expect "apt-get fails: so does deps, and names the package" [ "$status" = 1 -a "${said/clang/}" != "$said" ]

purpose=build run MISSING="clang libcmocka-dev" USER_ID=1000
expect "what only tests need is not needed to build" [ "$status-$said-$did" = "0--" ]
purpose=build run MISSING="libxxhash-dev clang" USER_ID=0
expect "what building needs is installed, and nothing else" [ "${did##*-y -qq }" = "libxxhash-dev" ]

purpose=plot run MISSING="clang gnuplot-nox libxxhash-dev" USER_ID=0
expect "curves need gnuplot, and what building needs" [ "${did##*-y -qq }" = "libxxhash-dev gnuplot-nox" ]
purpose=build run MISSING="gnuplot-nox" USER_ID=1000
expect "building needs no gnuplot" [ "$status-$said-$did" = "0--" ]
run MISSING="gnuplot-nox" USER_ID=0
expect "with the tests gnuplot comes too" [ "${did##*-y -qq }" = "gnuplot-nox" ]
run MISSING="libhiredis-dev g++ redis-server iproute2 zsh groff-base" USER_ID=0
expect "what tests would leave out otherwise is installed for them" [ "${did##*-y -qq }" = "libhiredis-dev g++ redis-server iproute2 zsh groff-base" ]
purpose=build run MISSING="g++ redis-server iproute2 zsh groff-base debhelper" USER_ID=1000
expect "building needs none of it" [ "$status-$said-$did" = "0--" ]
purpose=deb run MISSING="debhelper dpkg-dev clang gnuplot-nox libxxhash-dev" USER_ID=0
expect "packages need their tools, and what building needs" [ "${did##*-y -qq }" = "libxxhash-dev dpkg-dev debhelper" ]

run MISSING="libtkrzw-dev libkyotocabinet-dev clang" USER_ID=0
expect "what is optional is installed too" [ "$(grep -c install <<<"$did")" = 3 ]
run MISSING="libtkrzw-dev" USER_ID=0 APT_RESULT=100
expect "what is optional may fail: that is told" [ "$status" = 0 -a "${said/without libtkrzw-dev/}" != "$said" ]
run MISSING="libtkrzw-dev" USER_ID=1000
expect "what is optional needs no root: that is told, nothing done" [ "$status-$did" = "0-" -a "${said/without libtkrzw-dev/}" != "$said" ]
purpose=deb run MISSING="libtkrzw-dev" USER_ID=0
expect "packages are made without what is optional" [ "$status-$said-$did" = "0--" ]

fake sudo <<'CODE'
AS="sudo " exec "$@"
CODE
run MISSING="clang" USER_ID=1000
expect "sudo is used" [ "$status" = 0 -a "${did/sudo apt-get install/}" != "$did" ]
