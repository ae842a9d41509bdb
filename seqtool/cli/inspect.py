"""`seqtool inspect PATH`."""

from collections.abc import Iterable
from pathlib import Path

from seqtool.cli.inspection import describe
from seqtool.cli.run_table import table_of, trained


def inspect(path: str) -> None:
    """Say what a run, checkpoint or cache is, or of a directory of runs how they compare."""
    place = Path(path)
    runs = trained(sorted(place.iterdir())) if place.is_dir() else []
    print(table_of(runs) if runs else describe(place))


def compare(runs: Iterable[Path]) -> None:
    """The runs of a sweep as a table, if there are several."""
    if len(made := trained(runs)) > 1:
        print(table_of(made))
