"""The command line: a module for each command, and the code that the commands share."""

COMMANDS = (
    *("prepare", "train", "translate", "caption", "generate", "score", "rescore", "embed", "eval"),
    *("inspect", "report", "export", "demo", "check"),
)
