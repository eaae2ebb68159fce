#!/bin/bash
# Proves with a fake package manager that scripts/deps prints nothing if no package is missing, that it installs exactly
# the missing packages as root or with sudo, and that it names the missing packages if it cannot install them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
for tool in bash env cat; do
    ln -s "$(command -v $tool)" "$work/bin/$tool"
done

# fake NAME: makes the script on standard input the command NAME
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

# run VARIABLE=VALUE..: runs scripts/deps with the fake commands. Sets `status`, `said` (its output) and `did` (the
# calls of apt-get).
run() {
    : >"$work/log"
    status=0
    said=$(env PATH="$work/bin" LOG="$work/log" "$@" "$SOURCE/scripts/deps" ${purpose:-} 2>&1) || status=$?
    did=$(cat "$work/log")
}

# expect PROPERTY CONDITION..: fails the test with the name of the property unless the condition holds
expect() {
    local what=$1
    shift
    "$@" || { printf 'failed: %s\nstatus %s, output: %s\ncalls of apt-get: %s\n' "$what" "$status" "$said" "$did"; exit 1; }
}

run MISSING= USER_ID=0
expect "nothing missing: prints nothing and installs nothing" [ "$status-$said-$did" = "0--" ]

run MISSING="cmake libxxhash-dev" USER_ID=0
expect "root: succeeds" [ "$status" = 0 ]
expect "root: updates first" [ "${did%%$'\n'*}" = "apt-get update -qq" ]
expect "root: installs the missing packages and nothing else" [ "${did##*-y -qq }" = "cmake libxxhash-dev" ]

run MISSING="clang" USER_ID=1000
expect "neither root nor sudo: fails and installs nothing" [ "$status-$did" = "1-" ]
expect "neither root nor sudo: names the missing package" [ "${said/clang/}" != "$said" ]

run MISSING="clang" USER_ID=0 APT_RESULT=100
expect "apt-get fails: deps fails too, and names the package" [ "$status" = 1 -a "${said/clang/}" != "$said" ]

purpose=build run MISSING="clang libcmocka-dev" USER_ID=1000
expect "build: packages for tests are not required" [ "$status-$said-$did" = "0--" ]
purpose=build run MISSING="libxxhash-dev libjansson-dev clang" USER_ID=0
expect "build: installs the packages for building and nothing else" [ "${did##*-y -qq }" = "libxxhash-dev libjansson-dev" ]

purpose=plot run MISSING="clang gnuplot-nox libxxhash-dev" USER_ID=0
expect "plot: installs gnuplot and the packages for building" [ "${did##*-y -qq }" = "libxxhash-dev gnuplot-nox" ]
purpose=build run MISSING="gnuplot-nox" USER_ID=1000
expect "build: gnuplot is not required" [ "$status-$said-$did" = "0--" ]
run MISSING="gnuplot-nox" USER_ID=0
expect "tests: gnuplot is installed too" [ "${did##*-y -qq }" = "gnuplot-nox" ]
run MISSING="libhiredis-dev g++ redis-server iproute2 zsh groff-base" USER_ID=0
expect "tests: installs the packages without which parts of tests are left out" [ "${did##*-y -qq }" = "libhiredis-dev g++ redis-server iproute2 zsh groff-base" ]
purpose=build run MISSING="g++ redis-server iproute2 zsh groff-base debhelper" USER_ID=1000
expect "build: none of these packages is required" [ "$status-$said-$did" = "0--" ]
purpose=deb run MISSING="debhelper dpkg-dev clang gnuplot-nox libxxhash-dev" USER_ID=0
expect "deb: installs the packaging tools and the packages for building" [ "${did##*-y -qq }" = "libxxhash-dev dpkg-dev debhelper" ]

run MISSING="libtkrzw-dev libkyotocabinet-dev clang" USER_ID=0
expect "optional packages are installed too" [ "$(grep -c install <<<"$did")" = 3 ]
run MISSING="libtkrzw-dev" USER_ID=0 APT_RESULT=100
expect "an optional package that cannot be installed is reported" [ "$status" = 0 -a "${said/without libtkrzw-dev/}" != "$said" ]
run MISSING="libtkrzw-dev" USER_ID=1000
expect "optional packages without root: reported, and nothing is installed" [ "$status-$did" = "0-" -a "${said/without libtkrzw-dev/}" != "$said" ]
purpose=deb run MISSING="libtkrzw-dev" USER_ID=0
expect "deb: optional packages are not required" [ "$status-$said-$did" = "0--" ]

fake sudo <<'CODE'
AS="sudo " exec "$@"
CODE
run MISSING="clang" USER_ID=1000
expect "sudo is used" [ "$status" = 0 -a "${did/sudo apt-get install/}" != "$did" ]
