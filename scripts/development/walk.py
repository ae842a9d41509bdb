#!/usr/bin/env python
"""How far a reader has to walk: the functions of seqtool that an update or a command passes.

    git worktree add ../before COMMIT
    python scripts/development/walk.py ../before --output walks.json
    python scripts/development/walk.py --show update

Follows one update of `model=bahdanau`, and the commands `eval`, `translate` (one line) and `caption` (one picture, with
its plot), each with a tiny model that is trained first. Functions count in the order in which each is first called. A
change is a step from one function to the next in another file; a return is a change to a file that has been visited
before. Comprehensions, lambdas and what runs while modules are imported do not count, nor do other threads.
"""

import argparse
import inspect
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMON = (
    "device=cpu threads=1 data.processes=1 train.minutes=null train.log_every=1 train.best_by=loss train.steps=4 "
    "validation.sentences=2 validation.max_length=2"
)
TRANSLATOR = (
    f"train run=translator {COMMON} data=toy data.train=300 data.valid=8 data.test=8 data.vocabulary.size=200 "
    "model=bahdanau model.embedding=8 model.encoder_hidden=8 model.decoder_hidden=8 model.alignment=8 model.maxout=8"
)
CAPTIONER = (
    f"train run=captioner {COMMON} data=scenes data.train=20 data.valid=4 data.test=4 data.vocabulary.minimum_count=1 "
    "model=show_attend_tell model.embedding=8 model.hidden=8 model.alignment=8"
)
MACHINE = "device=cpu threads=1"
COMMANDS = {
    "eval": f"eval checkpoint=runs/translator split=test bootstrap=0 max_length=5 {MACHINE}",
    "translate": f"translate checkpoint=runs/translator input=line.txt max_length=5 {MACHINE}",
    "caption": f"caption checkpoint=runs/captioner images=data/scenes/test/00000.png plot=plots max_length=5 {MACHINE}",
}
UPDATE = 3  # the update that is followed, from the end of the one before

Function = tuple[str, str]  # its file within the package, its qualified name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", help="another checkout, to compare this one with")
    parser.add_argument("--show", choices=["update", *COMMANDS], help="print the files in order, with their functions")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers and the functions")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        follow_all()
        return
    checkouts = {"before": arguments.before, "after": ROOT} if arguments.before else {"after": ROOT}
    record = {}
    for name, checkout in checkouts.items():
        for walk, functions in walks_of(checkout.resolve()).items():
            record[f"{walk}, {name}"] = {**counts(functions), "functions_in_order": functions}
    for name, row in record.items():
        numbers = ", ".join(f"{value} {what}" for what, value in row.items() if what != "functions_in_order")
        print(f"{name:<20}{numbers}")
    if arguments.show:
        for file, functions in groupby(record[f"{arguments.show}, after"]["functions_in_order"], lambda row: row[0]):
            print(f"{file}: {', '.join(name for _, name in functions)}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def counts(functions: Sequence[Function]) -> dict[str, int]:
    files = [file for file, _ in groupby(functions, lambda function: function[0])]
    changes, visited = len(files) - 1, len(set(files))
    return {"functions": len(functions), "files": visited, "changes": changes, "returns": changes - (visited - 1)}


def walks_of(checkout: Path) -> dict[str, list[Function]]:
    """Follow everything in a process of its own, with the code of this checkout."""
    with tempfile.TemporaryDirectory(prefix="seqtool-walk-") as place:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{checkout}:\n{done.stderr[-3000:]}")
    walks: dict[str, list[Function]] = json.loads(done.stdout)
    return walks


def follow_all() -> None:
    """Train the models, follow an update and each command, and print the functions of each walk as JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    Path("line.txt").write_text("I have a big cat.\n", encoding="utf-8")
    walks = {"update": followed_update()}
    command(CAPTIONER)
    for name, line in COMMANDS.items():
        command(line)  # now everything is imported
        with followed() as functions:
            command(line)
        walks[name] = list(functions)
    json.dump(walks, answers)
    answers.close()


def followed_update() -> list[Function]:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    walk: dict[Function, None] = {}
    steps = 0

    def stepped(*_: Any) -> None:
        nonlocal steps
        steps += 1
        sys.setprofile(watcher(walk) if steps == UPDATE - 1 else None)

    hook = register_optimizer_step_post_hook(stepped)
    command(TRANSLATOR)
    hook.remove()
    return list(walk)


@contextmanager
def followed() -> Iterator[dict[Function, None]]:
    walk: dict[Function, None] = {}
    sys.setprofile(watcher(walk))
    try:
        yield walk
    finally:
        sys.setprofile(None)


def watcher(walk: dict[Function, None]) -> Callable[..., None]:
    """A profile function that adds seqtool's functions to the walk, in the order of their first calls."""
    import seqtool

    package = f"{Path(seqtool.__file__).parent}{os.sep}"

    def watch(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(package):
            return
        if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<"):  # no module, class body or lambda
            walk.setdefault((code.co_filename.removeprefix(package), code.co_qualname))

    return watch


def command(line: str) -> None:
    sys.argv = ["seqtool", *line.split()]
    try:
        runpy.run_module("seqtool", run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"seqtool {line}: exit status {ended.code}")


if __name__ == "__main__":
    main()
