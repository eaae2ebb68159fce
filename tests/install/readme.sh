#!/bin/bash
# Proves that what README tells to run can be run: every benchmark in it (with little data), and that it names the paper of each
# kind with a command that checks a claim of it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
farindex=$BUILD/farindex readme=$SOURCE/README.md
failed=0

papers=$(sed -n '/^### The papers/,/^###* Beside/p' "$readme")
for kind in $("$farindex" kinds --json | sed -n 's/^ *{"kind":"\([a-z]*\)".*/\1/p'); do
    row=$(grep "^| \`$kind\` |" <<<"$papers") || true
    [[ $row =~ 20[0-9][0-9] && $row == *"bench --index $kind"* ]] || { echo "README names no paper, year and command for $kind: $row"; failed=1; }
    grep -qF "[\`$kind\`](src/index/$kind/README.md)" "$readme" || { echo "README does not list $kind"; failed=1; }
done

# One line each: what stands between backquotes in the table (on the simulator, as it says), and in the blocks.
{
    grep -oE '`bench --index[^`]*`' <<<"$papers" | tr -d '`' | sed 's/$/ --pool sim:/'
    sed -nE 's/^farindex (bench [^#]*).*/\1/p' "$readme"
    grep -oE '`farindex bench [^`]*`' "$readme" | tr -d '`' | sed 's/^farindex //'
} | grep -v -- '--against\|--micro' | sort -u >"$work/commands"
[ "$(wc -l <"$work/commands")" -ge 10 ] || { echo "the benchmarks of README were not found"; exit 1; }
while read -r line; do
    [[ $line == *--duration* ]] && little="--records 200 --duration 1ms" || little="--records 200 --ops 200"
    "$farindex" $line $little --warmup 10 >"$work/said" 2>&1 </dev/null || { printf 'README: farindex %s\n' "$line"; cat "$work/said"; failed=1; }
done <"$work/commands"
exit $failed
