"""Train small runs of every kind, for tests of the demo and of reports, and run the demo's coroutines."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory

COMMON = ["data.processes=1", "device=cpu", "threads=1", "train.minutes=null"]


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


def train_all(directory: Path) -> None:
    """Train two translators (`runs/attend`, `runs/fixed`), a captioner of built-in pictures (`runs/scenes`) and a
    language model (`runs/text`) in this directory.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        data = ["data.train=300", "data.valid=5", "data.test=5", "data.vocabulary.size=200"]
        sizes = [
            f"model.{name}=12" for name in ("embedding", "encoder_hidden", "decoder_hidden", "alignment", "maxout")
        ]
        assert run("train", *COMMON, *data, *sizes, "train.steps=60", "optim.lr=0.02", "run=attend") == 0
        sutskever = ["model=sutskever", "model.embedding=8", "model.hidden=8", "model.layers=1", "train.steps=2"]
        assert run("train", *COMMON, *data, *sutskever, "run=fixed") == 0
        scenes = ["data=scenes", "data.train=20", "data.valid=4", "data.test=4", "data.vocabulary.minimum_count=1"]
        captioner = ["model=show_attend_tell", "model.embedding=8", "model.hidden=8", "model.alignment=8"]
        assert run("train", *COMMON, *scenes, *captioner, "train.steps=2", "validation.max_length=5", "run=scenes") == 0
        Path("text.txt").write_text("the cat sees the dog\n" * 50)
        texts = ["data=text", "data.train=text.txt", "model=language_model", "model.embedding=8", "model.hidden=8"]
        assert run("train", *COMMON, *texts, "train.steps=2", "run=text") == 0


def run_in_new_thread(make_coroutine: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a new thread, because Playwright leaves an event loop running in the main thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(make_coroutine())).result()
