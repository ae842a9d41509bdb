#!/usr/bin/env python
"""Count how often a reader of the code changes files: list functions in the order in which they are first called.

    python scripts/development/walk.py
    python scripts/development/walk.py update --functions
    python scripts/development/walk.py --checkout ../before --json before.json

The walks are one update of a small RNNsearch (`update`), and the commands `eval`, `translate` with one line, and
`caption` with one image and its plot. The models are trained for two steps in a temporary directory. Every command is
run once before its walk, so that the walk includes no imports. A walk's counts are

    functions    the functions of the package that are called, without lambdas and generator expressions
    files        the files that define them
    changes      the changes of file from one function to the next
    returns      the changes to a file that was visited before
"""

import argparse
import contextlib
import inspect
import io
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COMMON = "device=cpu threads=1 data.processes=1 train.minutes=null train.steps=2 train.batch_size=8 model.embedding=8"
TRANSLATOR = (
    f"train run=translator {COMMON} data=toy data.train=60 data.valid=4 data.test=4 data.vocabulary.kind=word "
    "model=bahdanau model.encoder_hidden=8 model.decoder_hidden=8 model.alignment=8 model.maxout=8"
)
CAPTIONER = (
    f"train run=captioner {COMMON} data=scenes data.train=8 data.valid=4 data.test=4 model=show_attend_tell "
    "model.hidden=8 model.alignment=8"
)
COMMANDS = {
    "eval": "eval checkpoint=runs/translator bootstrap=2 max_length=5 device=cpu threads=1",
    "translate": "translate checkpoint=runs/translator input=line.txt max_length=5 device=cpu threads=1",
    "caption": "caption checkpoint=runs/captioner images=image.png plot=plot.png max_length=5 device=cpu threads=1",
}
FOLLOWED_UPDATE = 3  # the number of the update that is recorded


class Function(NamedTuple):
    """A function of the package: its file, relative to the package, and its name."""

    file: str
    name: str


class Counts(NamedTuple):
    """The counts of a walk: see the top of this file."""

    functions: int
    files: int
    changes: int
    returns: int

    @classmethod
    def from_walk(cls, walk: list[Function]) -> "Counts":
        files = [function.file for function in walk]
        changes = [i for i, (before, after) in enumerate(pairwise(files), start=1) if before != after]
        returns = [i for i in changes if files[i] in files[:i]]
        return cls(len(walk), len(set(files)), len(changes), len(returns))


class Walk:
    """Records the functions of the package that are called between `begin` and `end`."""

    def __init__(self, package: Path) -> None:
        self._prefix = f"{package}{os.sep}"
        self.functions: dict[Function, None] = {}

    def begin(self, *frames: FrameType) -> None:
        """Start recording, with the functions of these frames, which are being called already."""
        self.functions = {}
        for frame in frames:
            self._record(frame, "call", None)
        sys.setprofile(self._record)

    def end(self) -> None:
        """Stop recording."""
        sys.setprofile(None)

    def _record(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self._prefix):
            return
        is_body = not code.co_flags & inspect.CO_OPTIMIZED  # the body of a module or class
        if not is_body and not code.co_name.startswith("<"):
            self.functions.setdefault(Function(code.co_filename.removeprefix(self._prefix), code.co_qualname))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "walks", nargs="*", default=["update", *COMMANDS], help="any of update, eval, translate, caption"
    )
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the checkout whose package is followed")
    parser.add_argument("--functions", action="store_true", help="print every function")
    parser.add_argument("--json", type=Path, help="a file for the counts")
    arguments = parser.parse_args()
    output = arguments.json and arguments.json.resolve()
    sys.path.insert(0, str(arguments.checkout.resolve()))
    record = {}
    with tempfile.TemporaryDirectory(prefix="seqtool-walk-") as scratch, contextlib.chdir(scratch):
        for name, walk in walks(arguments.walks):
            counts = record[name] = Counts.from_walk(walk)
            print(f"{name}: " + ", ".join(f"{count} {name}" for name, count in counts._asdict().items()))
            for function in walk if arguments.functions else ():
                print(f"  {function.file}: {function.name}")
    if output is not None:
        output.write_text(json.dumps({name: counts._asdict() for name, counts in record.items()}, indent=1) + "\n")


def walks(names: list[str]) -> Iterator[tuple[str, list[Function]]]:
    """Yield the name and the functions of each walk."""
    import seqtool
    from seqtool.runtime import distributed

    walk = Walk(Path(seqtool.__file__).parent)
    run_quietly(TRANSLATOR)
    if "update" in names:
        with record_update(distributed, walk):
            run_quietly(
                TRANSLATOR.replace("run=translator", "run=followed").replace("steps=2", f"steps={FOLLOWED_UPDATE + 1}")
            )
        yield "update", list(walk.functions)
    if "caption" in names:
        run_quietly(CAPTIONER)
        next(Path("data").rglob("*.png")).rename("image.png")
    Path("line.txt").write_text("I have a cat.\n")
    for name in (name for name in COMMANDS if name in names):
        run_quietly(COMMANDS[name])
        walk.begin()
        try:
            run_quietly(COMMANDS[name])
        finally:
            walk.end()
        yield name, list(walk.functions)


@contextlib.contextmanager
def record_update(distributed: Any, walk: Walk) -> Iterator[None]:
    """Record one update. Each iteration of the training loop begins by calling `distributed.maximum` with two values,
    to ask whether any process is to stop.
    """
    highest: Callable[..., list[float]] = distributed.maximum
    iterations = iter(range(1, FOLLOWED_UPDATE + 3))

    def count_iterations(*values: float) -> list[float]:
        iteration = next(iterations, None) if len(values) == 2 else None
        if iteration == FOLLOWED_UPDATE:
            loop = sys._getframe(2)  # the caller of the method that asks
            walk.begin(loop, sys._getframe(1))
        elif iteration == FOLLOWED_UPDATE + 1:
            walk.end()
        return highest(*values)

    distributed.maximum = count_iterations
    try:
        yield
    finally:
        distributed.maximum = highest


def run_quietly(line: str) -> None:
    """Run a command line without its output. If it fails, this script prints the output and ends."""
    from seqtool.cli import main as cli

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = cli.run(shlex.split(line), cli.config_directory())
    if status:
        sys.exit(f"seqtool {line}: exit status {status}\n{output.getvalue()}")


if __name__ == "__main__":
    main()
