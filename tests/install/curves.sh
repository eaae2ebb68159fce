#!/bin/bash
# Proves what scripts/curves does: every kind it is given is measured over the numbers of clients, and one page has them
# all. A make-believe gnuplot draws its own script.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
printf '#!/bin/sh\necho "<svg>"; cat "$1"; echo "</svg>"\n' >"$work/bin/gnuplot"
chmod +x "$work/bin/gnuplot"
PATH="$work/bin:$PATH" FARINDEX="$BUILD/farindex" INTO="$work/curves" KIND="dart shard" CLIENTS=1,16 RECORDS=500 OPS=500 JOBS=2 \
    "$SOURCE/scripts/curves" >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }
page=$work/curves/report.html
for words in "title 'dart'" "title 'shard'" "set xlabel 'clients'" "<tr><th>16</th>" "Workload a" "Workload c"; do
    grep -qF "$words" "$page" || { echo "the page lacks: $words"; exit 1; }
done
