# Completion of farindex in bash: commands, their options as --help lists them, indexes of the pool, and kinds.

_farindex_options() {
    farindex "$1" --help 2>/dev/null | sed -n 's/^  \(--[a-z-]*\).*/\1/p'
}

# The pool that the line names, or that of the environment; nothing is ever made by looking.
_farindex_indexes() {
    local i pool=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == --pool ]] && pool=(--pool "${COMP_WORDS[i + 1]}")
    done
    farindex list "${pool[@]}" 2>/dev/null | cut -f1
}

_farindex_kinds() {
    farindex kinds 2>/dev/null | sed -n 's/^\([a-z]*\): .*/\1/p'
}

# Sets COMPREPLY to the lines of stdin that begin with the word, blanks in them escaped.
_farindex_reply() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        [[ $line == "$1"* ]] && COMPREPLY+=("$(printf '%q' "$line")")
    done
}

_farindex() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command= at=1
    [[ ${COMP_WORDS[1]} == --pool ]] && at=3
    ((COMP_CWORD > at)) && command=${COMP_WORDS[at]}
    case $before in
    --pool) return ;;
    --kind) _farindex_reply "$word" < <(_farindex_kinds); return ;;
    --format) _farindex_reply "$word" < <(printf 'lines\nbinary\n'); return ;;
    esac
    if [[ -z $command ]]; then
        _farindex_reply "$word" < <(farindex --help 2>/dev/null | sed -n 's/^  \([a-z]*\) .*/\1/p'; echo help)
    elif [[ $word == -* ]]; then
        _farindex_reply "$word" < <(_farindex_options "$command")
    elif [[ $command == create && $((COMP_CWORD - at)) == 2 ]] || [[ $before == --index ]]; then
        _farindex_reply "$word" < <(_farindex_kinds)
    elif [[ " check copy del drop dump get load put scan stat " == *" $command "* && $((COMP_CWORD - at)) == 1 ]]; then
        _farindex_reply "$word" < <(_farindex_indexes)
    fi
}

complete -o default -F _farindex farindex
