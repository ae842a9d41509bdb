complete -c seqtool -f -a '(seqtool --complete (commandline -cp) 2> /dev/null)'
