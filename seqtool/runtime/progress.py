"""Progress bars, for people and for logs."""

import sys

from tqdm import tqdm


def progress_bar(*, total: int | None, unit: str, description: str, shown: bool = True) -> tqdm:
    """A bar on standard error; where that is no terminal, a line now and then."""
    bar: tqdm = tqdm(
        total=total,
        unit=unit,
        desc=description,
        dynamic_ncols=True,
        mininterval=0.5 if sys.stderr.isatty() else 30,
        disable=not shown,
    )
    return bar
