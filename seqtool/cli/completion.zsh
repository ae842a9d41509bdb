_seqtool() {
    local -a found=("${(@f)$(seqtool --complete "${(j: :)words[1,CURRENT]}" 2> /dev/null)}")
    compadd -S '' -- $found
}
compdef _seqtool seqtool
