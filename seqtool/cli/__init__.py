"""What the shell sees: a file for each command, and what they share."""

COMMANDS = ("prepare", "train", "translate", "caption", "generate", "score", "eval", "inspect", "report", "demo")
