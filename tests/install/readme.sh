#!/bin/bash
# Proves that every benchmark command in README.md, docs/using.md and docs/results.md runs (with little data), that
# docs/results.md names the paper of each kind with a command that shows one of its claims, and that README.md links
# each kind and is short.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
farindex=$BUILD/farindex readme=$SOURCE/README.md results=$SOURCE/docs/results.md
pages=("$readme" "$SOURCE/docs/using.md" "$results")
failed=0
[ "$(wc -l <"$readme")" -le 120 ] || { echo "README.md has more than 120 lines"; failed=1; }

papers=$(sed -n '/^## The papers/,/^##* LMDB/p' "$results")
for kind in $("$farindex" kinds --json | sed -n 's/^ *{"kind":"\([a-z]*\)".*/\1/p'); do
    row=$(grep "^| \`$kind\` |" <<<"$papers") || true
    [[ $row =~ 20[0-9][0-9] && $row == *"bench --index $kind"* ]] || { echo "docs/results.md names no paper, year and command for $kind: $row"; failed=1; }
    grep -qF "[\`$kind\`](src/index/$kind/README.md)" "$readme" || { echo "README does not list $kind"; failed=1; }
done

# One command per line: those between backquotes in the table of papers (on the simulator), and those in code blocks.
{
    grep -oE '`bench --index[^`]*`' <<<"$papers" | tr -d '`' | sed 's/$/ --pool sim:/'
    sed -nE 's/^farindex (bench [^#]*).*/\1/p' "${pages[@]}"
    grep -ohE '`farindex bench [^`]*`' "${pages[@]}" | tr -d '`' | sed 's/^farindex //'
} | grep -v -- '--against\|--micro' | sort -u >"$work/commands"
[ "$(wc -l <"$work/commands")" -ge 10 ] || { echo "the benchmark commands of the pages were not found"; exit 1; }
while read -r line; do
    [[ $line == *--duration* ]] && little="--records 200 --duration 1ms" || little="--records 200 --ops 200"
    "$farindex" $line $little --warmup 10 >"$work/said" 2>&1 </dev/null || { printf 'a page has: farindex %s\n' "$line"; cat "$work/said"; failed=1; }
done <"$work/commands"
exit $failed
