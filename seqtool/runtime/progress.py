"""Progress bars for terminals and logs."""

import sys

from tqdm import tqdm


def progress_bar(*, total: int | None, unit: str, description: str, start: int = 0, shown: bool = True) -> tqdm:
    """A progress bar on standard error, which is updated every 30 seconds if that is not a terminal."""
    bar: tqdm = tqdm(
        total=total,
        initial=start,
        unit=unit,
        desc=description,
        dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 30,
        disable=not shown,
    )
    return bar
