#compdef weightfs
# Completion of weightfs for zsh.

local line word kind kept
local -a lines plain equals
lines=("${(@f)$(weightfs complete-words -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
kind=${lines[1]%%$'\t'*}
kept=${lines[1]#*$'\t'}
IPREFIX+=${PREFIX[1,$#kept]}
PREFIX=${PREFIX[$#kept+1,-1]}
for line in "${(@)lines[2,-1]}"; do
    word=${line%%$'\t'*}
    # _describe separates words from descriptions by colons.
    line=${word//:/\\:}:${line#*$'\t'}
    if [[ $word == *[=/] ]]; then equals+=("$line"); else plain+=("$line"); fi
done
local found=1
_describe -t words weightfs plain -- equals -S '' && found=0
case $kind in
files) _files && found=0 ;;
directories) _files -/ && found=0 ;;
users) _users && found=0 ;;
groups) _groups && found=0 ;;
esac
return found
