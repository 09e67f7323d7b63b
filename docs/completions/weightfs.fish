# Completion of weightfs for fish.

# Prints what `weightfs complete-words` says about the command line up to the cursor.
function __weightfs_lines
    set -l before (commandline -opc)
    weightfs complete-words -- $before[2..] (__weightfs_word) 2>/dev/null
end

# Prints the word before the cursor without its quotes, of which the last one may be missing.
function __weightfs_word
    set -l word (commandline -ct)
    for quote in "" "'" '"'
        string unescape -- "$word$quote"; and return
    end
    echo -- "$word"
end

function __weightfs_complete
    set -l lines (__weightfs_lines)
    set -l first (string split \t -- "$lines[1]")
    set -l kept "$first[2]"
    switch "$first[1]"
        case directories
            set -l rest (string sub --start (math (string length -- "$kept") + 1) -- (__weightfs_word))
            set -a lines (__fish_complete_directories "$rest" "")
        case users
            set -a lines (__fish_complete_users)
        case groups
            set -a lines (__fish_complete_groups)
    end
    for line in $lines[2..]
        echo -- "$kept$line"
    end
end

complete -c weightfs -n 'string match -q "files*" -- (__weightfs_lines)[1]' -F
complete -c weightfs -f -k -a '(__weightfs_complete)'
