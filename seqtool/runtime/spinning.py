"""How long the threads of OpenMP, torch's, wait actively for the next piece of work before they sleep."""

import os
import sys

# Of libgomp, whose default is 300,000, about 3 ms. The lowest with which one training alone is at most 3 % slower; each
# of two side by side then has 0.67 of half the rate of one alone, instead of 0.18 (benchmark_busy.py).
SPIN_COUNT = 10_000
BLOCK_TIME = 1  # ms, of libomp, whose own is 200


def limit_spinning() -> None:
    """Have threads sleep soon: beside another process, one that spins keeps a core from the thread it waits for.

    The libraries read this once, when torch is imported: after that nothing is set. What the user has set stays.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
        os.environ.setdefault("KMP_BLOCKTIME", str(BLOCK_TIME))
