#!/bin/bash
# Proves with fake tools that the summary of scripts/test lists each part of a test that was left out, once, and that
# the script fails if a test fails.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts" "$work/bin"
cp "$SOURCE/scripts/test" "$work/scripts"
printf '#!/bin/sh\n' >"$work/bin/cmake"
cat >"$work/bin/ctest" <<'CODE'
#!/bin/sh
mkdir -p build/test/Testing/Temporary
printf 'LEFT OUT: zsh: not here\nfine\nLEFT OUT: ip: not here\nLEFT OUT: zsh: not here\n' >build/test/Testing/Temporary/LastTest.log
exit "$RESULT"
CODE
chmod +x "$work/bin/"*

said=$(PATH="$work/bin:$PATH" RESULT=0 "$work/scripts/test" test) || { echo "scripts/test fails although no test failed: $said"; exit 1; }
summary=${said#*== summary}
[ "$(grep -c 'left out:' <<<"$summary")" = 2 ] && grep -q 'left out: zsh: not here' <<<"$summary" && grep -q 'left out: ip: not here' <<<"$summary" ||
    { printf 'the summary does not list each left-out part once:\n%s\n' "$said"; exit 1; }
! PATH="$work/bin:$PATH" RESULT=1 "$work/scripts/test" test >/dev/null || { echo "scripts/test succeeds although a test failed"; exit 1; }
