_seqtool() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n' word
    word="${line##* }"
    COMPREPLY=($(seqtool --complete "$line" 2> /dev/null))
    COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*=}"}"}")
}
complete -o nospace -F _seqtool seqtool
