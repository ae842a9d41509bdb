"""Run command lines one after another in one process; tests/test_distributed.py starts this script with torchrun.

    python tests/commands.py DIE_AT '[["float64", "train", "run=a"], …]'

Each command line is preceded by the dtype of its parameters. The second process is killed once, at step DIE_AT, unless
that is 0. A process that succeeds must leave no thread of the process group (Gloo), since such a thread occasionally
aborts a process that has finished its work.
"""

import atexit
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seqtool.cli import main as cli
from seqtool.training.trainer import Trainer


def main() -> None:
    die_at, lines = sys.argv[1:]
    if int(die_at) and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        _die_at(int(die_at))
    atexit.register(check_threads)  # registered first, so called last
    if status := run_lines(json.loads(lines)):
        atexit.unregister(check_threads)
        sys.exit(status)


def run_lines(lines: Sequence[Sequence[str]]) -> int:
    """Run command lines up to the first that fails, and return the exit status of the last."""
    for dtype, *line in lines:
        torch.set_default_dtype(getattr(torch, dtype))
        if status := cli.run(line, cli.config_directory()):
            return status
    return 0


def check_threads() -> None:
    thread_names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    if group_threads := [name for name in thread_names if "gloo" in name]:
        print(f"Threads outlived the group: {group_threads}", file=sys.__stderr__, flush=True)
        os._exit(1)


def _die_at(step: int) -> None:
    begin_update = Trainer._begin_update

    def die_or_begin_update(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return begin_update(self, *arguments)

    Trainer._begin_update = die_or_begin_update  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
