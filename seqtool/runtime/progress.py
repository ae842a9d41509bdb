"""Progress bars for terminals and logs."""

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(
    *, total: int | None, unit: str, description: str, start: int = 0, shown: bool = True, **options: Any
) -> tqdm:
    """A progress bar on standard error, updated twice a second in a terminal or notebook, else every 30 seconds;
    `options` are further ones of tqdm.
    """
    wait = 0.5 if sys.stderr.isatty() or "ipykernel" in sys.modules else 30  # seconds between updates
    options |= {"dynamic_ncols": True, "mininterval": wait}
    bar: tqdm = tqdm(total=total, initial=start, unit=unit, desc=description, disable=not shown, **options)
    return bar
