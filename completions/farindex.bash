# Completes farindex commands in bash: commands, the options that --help lists, indexes of the pool, and kinds.

_farindex_kinds() {
    farindex kinds 2>/dev/null | sed -n 's/^\([a-z]*\): .*/\1/p'
}

# _farindex_reply WORD: sets COMPREPLY to the lines of standard input that begin with the word, with escaped blanks.
_farindex_reply() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        [[ $line == "$1"* ]] && COMPREPLY+=("$(printf '%q' "$line")")
    done
}

# Splits the line at blanks, because bash itself would also split at the ':' and '=' of a URI. Finds the command, the
# number of operands before the word that is completed, the word before it, and the pool. Completion never creates a
# pool.
_farindex() {
    local line=${COMP_LINE:0:COMP_POINT} command= operands=0 before= takes=' --pool ' i word
    local -a words pool=()
    read -ra words <<<"$line"
    [[ $line == *[[:blank:]] ]] && words+=("")
    for ((i = 1; i < ${#words[@]} - 1; i++)); do
        word=${words[i]//[\'\"]/}
        if [[ $takes == *" $before "* ]]; then
            [[ $before == --pool ]] && pool=(--pool "$word")
            word=
        elif [[ $word == --pool=* ]]; then
            pool=("$word")
        elif [[ $word != -* && -z $command ]]; then
            command=$word
            takes=" $(farindex "$command" --help 2>/dev/null | sed -n 's/^  \(--[a-z-]*\) [^ ].*/\1/p' | tr '\n' ' ')"
        elif [[ $word != -* ]]; then
            operands=$((operands + 1))
        fi
        before=$word
    done
    word=${words[i]}
    case $before in
    --kind | --index) _farindex_reply "$word" < <(_farindex_kinds); return ;;
    --format) _farindex_reply "$word" < <(printf 'lines\nbinary\n'); return ;;
    esac
    if [[ -n $before && $takes == *" $before "* ]]; then
        return
    elif [[ -z $command ]]; then
        _farindex_reply "$word" < <(farindex --help 2>/dev/null | sed -n 's/^  \([a-z]*\) .*/\1/p'; echo help)
    elif [[ $word == -* ]]; then
        _farindex_reply "$word" < <(farindex "$command" --help 2>/dev/null | sed -n 's/^  \(--[a-z-]*\).*/\1/p')
    elif [[ $command == create && $operands == 1 ]]; then
        _farindex_reply "$word" < <(_farindex_kinds)
    elif [[ " check copy del drop dump get load put scan stat " == *" $command "* && $operands == 0 ]]; then
        _farindex_reply "$word" < <(farindex list "${pool[@]}" 2>/dev/null | cut -f1)
    elif [[ $command == help && $operands == 0 ]]; then
        _farindex_reply "$word" < <(farindex --help 2>/dev/null | sed -n 's/^  \([a-z]*\) .*/\1/p')
    fi
}

complete -o default -F _farindex farindex
