"""How long torch's OpenMP threads spin, that is, busy-wait for work, before they sleep."""

import os
import sys

# The spin count for libgomp; its default, 300,000, lasts about 3 ms. 10,000 is the lowest count at which a single
# training run is at most 3 % slower. Two runs side by side then each reach 67 % of their fair share, which is half the
# speed of a single run, instead of 18 % (benchmark_busy.py).
SPIN_COUNT = 10_000
BLOCK_TIME = 1  # the time in milliseconds for libomp, whose default is 200


def limit_spinning() -> None:
    """Make threads sleep soon: if processes share cores, a spinning thread takes a core from the thread it waits for.

    The libraries read these variables when torch is imported, so this does nothing afterwards. Values that the user has
    set are kept.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
        os.environ.setdefault("KMP_BLOCKTIME", str(BLOCK_TIME))
