"""Train runs with compile=true, of other widths first, and one without, from the settings that are given.
tests/models/test_traceable.py runs this script in a process of its own, since torch.compile does not trace the shape
checks of tests/conftest.py.

    python tests/compiled_runs.py MAX_GRAPHS SETTING …
"""

import sys

import torch
from torch._dynamo.utils import counters

from seqtool.cli import main as cli
from seqtool.training import compiling
from seqtool.training.recording import MetricsLog

MetricsLog.draw = lambda *_, **__: None  # type: ignore[method-assign]
torch.set_default_dtype(torch.float64)
compiling.BACKEND, compiling.MAX_GRAPHS = "aot_eager", int(sys.argv[1])
for value, run, settings in (
    ("true", "narrow", ["model.feed_forward=5"]),
    ("true", "narrower", ["model.feed_forward=4"]),
    ("true", "true", []),
    ("false", "false", []),
):
    line = ["train", f"compile={value}", f"run={run}", *sys.argv[2:], *settings]
    if status := cli.run(line, cli.config_directory()):
        sys.exit(status)
assert counters["stats"]["unique_graphs"] == 3 * compiling.MAX_GRAPHS  # each run has as many as it may have
