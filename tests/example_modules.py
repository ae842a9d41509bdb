"""Imports the files of examples/ as users do, by names that are found on Python's path."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import seqtool

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@contextmanager
def imported(name: str, directory: Path) -> Iterator[Any]:
    """Import an example within the context, in which `directory` is the current one."""
    path = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        patch.chdir(directory)
        yield importlib.import_module(name)
    sys.path[:] = path
    sys.modules.pop(name, None)


def train_less(patch: pytest.MonkeyPatch, *settings: str) -> None:
    """Add settings to every call of `seqtool.train`, so that an example trains a smaller model or for fewer updates."""
    train = seqtool.train
    patch.setattr(seqtool, "train", lambda *given, **others: train(*given, *settings, **others))
