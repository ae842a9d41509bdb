"""How long torch's OpenMP threads spin, that is wait actively for work, before they sleep."""

import os
import sys

# For libgomp, whose default is 300,000, about 3 ms. The lowest count with which a single training is at most 3 %
# slower; two side by side each reach 0.67 of half the rate of a single one, instead of 0.18 (benchmark_busy.py).
SPIN_COUNT = 10_000
BLOCK_TIME = 1  # milliseconds, for libomp, whose default is 200


def limit_spinning() -> None:
    """Make threads sleep soon: if processes share cores, a spinning thread takes a core from the thread it waits for.

    The libraries read these variables when torch is imported; afterwards nothing is set. The user's own values stay.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
        os.environ.setdefault("KMP_BLOCKTIME", str(BLOCK_TIME))
