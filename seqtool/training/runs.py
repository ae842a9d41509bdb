"""Run directories: `run=NAME` trains into `runs/NAME`; a run is never overwritten."""

import os
from difflib import SequenceMatcher
from pathlib import Path

from seqtool.errors import InputError, place

RUNS = Path("runs")
BUILT_IN = Path("builtin")  # checkpoint=builtin/NAME is a trained model that is part of the package
MAX_NAMES = 12  # names of runs in a message


def create(name: str | None, *, suggestion: str, root: Path) -> Path:
    """Make the directory of a new run and return its path.

    Without a name, the run gets the first of `suggestion`, `suggestion-2`, … that no other run has. Creating the
    directory claims the name, so two processes never get the same name. Raises InputError for a name that another run
    has, or that does not name a directory directly inside `root`.
    """
    root.mkdir(parents=True, exist_ok=True)
    run, number = path(suggestion if name is None else name, root=root), 1
    while True:
        try:
            run.mkdir()
            return run
        except FileExistsError:
            if name is not None:
                check_new(name, root=root)
            number += 1
            run = path(f"{suggestion}-{number}", root=root)


def check_new(name: str, *, root: Path) -> None:
    """Raise InputError if this name is taken or is not valid for a run."""
    if os.path.lexists(run := path(name, root=root)):
        saved = any((run / "checkpoints").glob("step-*"))
        advice = "resume it with train.resume=true" if saved else "start it again with train.resume=auto"
        raise InputError(f"Run '{name}' already exists in {run}: choose another name with run=…, or {advice}.")


def located(path: Path) -> Path:
    """The directory of a run or checkpoint: a built-in model's for builtin/NAME, unless such a path exists here."""
    is_built_in = path.parts[:1] == BUILT_IN.parts and not path.exists()
    return Path(__file__).parent.parent / path if is_built_in else path


def check_exists(path: Path, kind: str, *others: Path) -> None:
    """Raise InputError if the directory of a run or checkpoint is missing, or if a file is named instead of it."""
    if not path.exists():
        here = "" if path.is_absolute() else f" The current directory is {Path.cwd()}."
        raise InputError(f"There is no {kind} at {path}.{nearby(path, *others)}{here}")
    if path.is_file():
        advice = f"give its directory, {path.absolute().parent}, if that is a {kind}"
        if path.suffix.lower() in (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z"):
            advice = "unpack it first, and give the directory of the run or checkpoint in it"
        raise InputError(f"{path} is a file: {advice}.")


def nearby(missing: Path, *others: Path) -> str:
    """A sentence that lists the runs or checkpoints beside a missing path, or else in runs/, or else in one of the
    `others`, the most similar names first; empty if there are none.
    """
    for directory in (missing.parent, RUNS, *others):
        paths = (path for kind in ("*/checkpoints", "*/manifest.json") for path in located(directory).glob(kind))
        names = {path.parent.name for path in paths}
        similarity = {name: SequenceMatcher(None, missing.name.lower(), name.lower()).ratio() for name in sorted(names)}
        if nearest := sorted(similarity, key=lambda name: -similarity[name]):
            more = f" and {len(nearest) - MAX_NAMES} more" if len(nearest) > MAX_NAMES else ""
            return f" {place(directory)} holds {', '.join(nearest[:MAX_NAMES])}{more}."
    return ""


def path(name: str, *, root: Path) -> Path:
    """The directory of the run called `name`, which need not exist. Raises InputError if it is a path such as a/b."""
    if name in ("", ".", "..") or os.sep in name or "\0" in name:
        raise InputError(f"Run name '{name}' is not a plain directory name: a run lives directly in {root}.")
    return root / name
