_seqtool() {
    local -a completions=("${(@f)$(seqtool --complete "${(j: :)words[1,CURRENT]}" 2> /dev/null)}")
    compadd -S '' -- $completions
}
compdef _seqtool seqtool
