"""What users run: a module for each command, and what the commands share."""

COMMANDS = (
    *("prepare", "train", "translate", "caption", "generate", "score", "eval"),
    *("inspect", "report", "export", "demo", "check"),
)
