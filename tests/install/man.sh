#!/bin/bash
# Proves that farindex.1 and --help describe the same commands and options, that README.md and the pages use no other
# options, and that groff accepts the manual pages without a warning.
set -euo pipefail
farindex=$BUILD/farindex page=$SOURCE/docs/man/farindex.1
failed=0

complain() {
    echo "$1"
    failed=1
}

# options_of COMMAND: prints the options that --help of the command lists
options_of() {
    "$farindex" "$1" --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p'
}

# part_of COMMAND: prints the part of the manual page about the command, with plain dashes
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
    grep -q "^\.B farindex $command" <<<"$part" || complain "farindex.1 does not describe $command"
    while read -r option; do
        echo "$command $option" >>"$all"
        grep -qE -- "$option([^a-z-]|\$)" <<<"$part" || [ "$option" = --help ] || complain "farindex.1 does not describe $command $option"
    done < <(options_of "$command")
done

# In the other direction, each option that a page names is an option of some command.
for file in "$page" "$SOURCE/README.md" "$SOURCE/docs/using.md" "$SOURCE/docs/results.md"; do
    while read -r option; do
        grep -q -- " $option\$" "$all" || complain "$(basename "$file") names $option, which no command has"
    done < <(sed 's/\\-/-/g' "$file" | grep -oE -- '(^|[^a-z-])--[a-z][a-z-]+' | grep -oE -- '--[a-z-]+' | sort -u | grep -vxE -- '--(help|version|cflags|libs)')
done

# Each command line in README.md and the pages has only options of that command.
lines=0
while read -r command rest; do
    lines=$((lines + 1))
    for option in $(grep -oE -- '(^| )--[a-z][a-z-]+' <<<"${rest%%#*}" || true); do
        grep -q -- "^$command $option\$" "$all" || complain "a page shows $command $option, but $command has no such option"
    done
done < <(sed -nE 's/^farindex ([a-z]+ .*)/\1/p; s/^.*`(farindex )?((bench|torture) --[^`]*)`.*/\2/p' "$SOURCE/README.md" "$SOURCE/docs/using.md" "$SOURCE/docs/results.md")
[ "$lines" -ge 15 ] || complain "the lines of farindex were not found in the pages"

if command -v groff >/dev/null; then
    said=$(groff -man -Tutf8 -ww -z "$page" "$SOURCE/docs/man/farindex.3" 2>&1) || true
    [ -z "$said" ] || complain "groff complains: $said"
else
    echo "LEFT OUT: typesetting of the manual pages: groff is not installed"
fi
exit $failed
