#!/bin/bash
# Proves that scripts/curves measures each given kind for each given number of clients, and that its page shows all of
# them. A fake gnuplot outputs its own script instead of a picture.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
printf '#!/bin/sh\necho "<svg>"; cat "$1"; echo "</svg>"\n' >"$work/bin/gnuplot"
chmod +x "$work/bin/gnuplot"
PATH="$work/bin:$PATH" FARINDEX="$BUILD/farindex" INTO="$work/curves" KIND="dart shard" CLIENTS=1,16 RECORDS=500 OPS=500 JOBS=2 \
    "$SOURCE/scripts/curves" >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }
for column in clients mops; do # the columns that the picture names
    grep -q "using .*\"$column\"" "$work/curves/throughput.gnuplot" || { echo "the picture does not use the column $column"; exit 1; }
    head -1 "$work/curves/dart.csv" | tr , '\n' | grep -qx "$column" || { echo "the CSV has no column $column"; exit 1; }
done
page=$work/curves/report.html
for words in "title 'dart'" "title 'shard'" "set xlabel 'clients'" "<tr><th>16</th>" "Workload a" "Workload c"; do
    grep -qF "$words" "$page" || { echo "the page lacks: $words"; exit 1; }
done
