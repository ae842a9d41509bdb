"""What the shell sees: the command line, its help, and a page for each command."""
