"""`seqtool inspect PATH`."""

from pathlib import Path

from seqtool.inspection import describe


def inspect(path: str) -> None:
    """Say what a run, checkpoint or cache is."""
    print(describe(Path(path)))
