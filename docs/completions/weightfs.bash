# shellcheck shell=bash
# Completion of weightfs for bash.

_weightfs() {
    local rest=${COMP_LINE:0:COMP_POINT} words=() piece word before kind kept line
    # bash splits words at the characters of COMP_WORDBREAKS too. Pieces without blanks between them are one word.
    for piece in "${COMP_WORDS[@]:0:COMP_CWORD}" ""; do
        word=${rest#"${rest%%[![:space:]]*}"}
        # The last piece ends at the cursor.
        [[ $piece ]] || piece=$word
        if [[ $word == "$rest" && ${#words[@]} -gt 0 ]]; then
            before=${words[-1]}
            words[-1]+=$piece
        else
            before=
            words+=("$piece")
        fi
        rest=${word#"$piece"}
    done
    word=${words[-1]}
    # What readline replaces begins after the last of = and :.
    [[ $piece != *[=:] ]] || before=$word piece=

    local lines
    mapfile -t lines < <(weightfs complete-words -- "${words[@]:1}" 2>/dev/null)
    IFS=$'\t' read -r kind kept <<<"${lines[0]}"
    for line in "${lines[@]:1}"; do
        line=$kept${line%%$'\t'*}
        [[ $line != "$word"* ]] || COMPREPLY+=("${line#"$before"}")
    done
    case $kind in
    files)
        if ((${#COMPREPLY[@]})); then
            mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$piece")
            compopt -o filenames
        else
            # readline completes file names, with ~ and quotes.
            compopt -o default
        fi
        ;;
    directories) compopt -o dirnames ;;
    mountpoints) compopt -o filenames ;;
    users) mapfile -t COMPREPLY < <(compgen -u -- "$piece") ;;
    groups) mapfile -t COMPREPLY < <(compgen -g -- "$piece") ;;
    esac
    [[ ${COMPREPLY[0]} != *[=/] ]] || compopt -o nospace
} &&
    complete -F _weightfs weightfs
