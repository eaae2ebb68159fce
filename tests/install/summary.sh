#!/bin/bash
# Proves that scripts/test, with make-believe tools, tells at its end what tests have left out on this machine, and fails
# when a test does.
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

said=$(PATH="$work/bin:$PATH" RESULT=0 "$work/scripts/test" test) || { echo "it fails though no test did: $said"; exit 1; }
summary=${said#*== summary}
[ "$(grep -c 'left out:' <<<"$summary")" = 2 ] && grep -q 'left out: zsh: not here' <<<"$summary" && grep -q 'left out: ip: not here' <<<"$summary" ||
    { printf 'the summary does not tell what was left out, once each:\n%s\n' "$said"; exit 1; }
! PATH="$work/bin:$PATH" RESULT=1 "$work/scripts/test" test >/dev/null || { echo "it succeeds though a test failed"; exit 1; }
