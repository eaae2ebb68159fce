#!/bin/bash
# Proves that farindex.1 and --help tell of the same commands and options, that README shows none that is not there, and
# that the page can be typeset without complaint.
set -euo pipefail
farindex=$BUILD/farindex page=$SOURCE/docs/man/farindex.1
failed=0

complain() {
    echo "$1"
    failed=1
}

# options_of COMMAND: those of --help
options_of() {
    "$farindex" "$1" --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p'
}

# part_of COMMAND: what the page says of it, with dashes as they are typed
part_of() {
    awk -v command="$1" '
        /^\.SH COMMANDS ON/ { common = 1 }
        /^\.(TP|SH)/ { common = common && /^\.SH/; inside = 0 }
        $0 ~ "^\\.B farindex " command "( |$)" { inside = 1 }
        $0 ~ "^\\.SH OPTIONS OF " toupper(command) "$" { long = 1; next }
        /^\.SH/ { long = 0 }
        inside || long || common' "$page" | sed 's/\\-/-/g'
}

commands=$("$farindex" --help | sed -n 's/^  \([a-z]*\) .*/\1/p')
[ "$(wc -w <<<"$commands")" -ge 20 ] || complain "the commands were not found in --help"
all=$(mktemp)
trap 'rm -f "$all"' EXIT
for command in $commands; do
    part=$(part_of "$command")
    grep -q "^\.B farindex $command" <<<"$part" || complain "farindex.1 says nothing of $command"
    while read -r option; do
        echo "$command $option" >>"$all"
        grep -qE -- "$option([^a-z-]|\$)" <<<"$part" || [ "$option" = --help ] || complain "farindex.1 says nothing of $command $option"
    done < <(options_of "$command")
done

# The other way round: an option that the page or README names is one of some command.
for file in "$page" "$SOURCE/README.md"; do
    while read -r option; do
        grep -q -- " $option\$" "$all" || complain "$(basename "$file") names $option, which no command has"
    done < <(sed 's/\\-/-/g' "$file" | grep -oE -- '(^|[^a-z-])--[a-z][a-z-]+' | grep -oE -- '--[a-z-]+' | sort -u | grep -vxE -- '--(help|version|cflags|libs)')
done

# README's lines of farindex have options of that very command.
lines=0
while read -r command rest; do
    lines=$((lines + 1))
    for option in $(grep -oE -- '(^| )--[a-z][a-z-]+' <<<"${rest%%#*}" || true); do
        grep -q -- "^$command $option\$" "$all" || complain "README has $command $option, which is not there"
    done
done < <(sed -nE 's/^farindex ([a-z]+ .*)/\1/p; s/^.*`(farindex )?((bench|torture) --[^`]*)`.*/\2/p' "$SOURCE/README.md")
[ "$lines" -ge 15 ] || complain "the lines of farindex were not found in README"

if command -v groff >/dev/null; then
    said=$(groff -man -Tutf8 -ww -z "$page" "$SOURCE/docs/man/farindex.3" 2>&1) || true
    [ -z "$said" ] || complain "groff complains: $said"
else
    echo "LEFT OUT: how the manual pages are typeset: no groff here"
fi
exit $failed
