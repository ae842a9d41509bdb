"""Batches are made ready by a thread: in order, the same ones, with its errors, and no thread stays."""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_models import random_sentences

from seqtool.cli import main as cli
from seqtool.data.batches import Batch, Indices, make_source, make_target
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint, prefetching
from seqtool.training.losses import TrainingLoss
from seqtool.training.prefetching import Prefetcher
from seqtool.training.recording import MetricsLog
from seqtool.training.saving import Progress

CPU = torch.device("cpu")
GROUPS = [np.arange(start, start + 3) for start in range(0, 30, 3)]
SETTINGS = [
    *("data=parallel", "data.train=train.tsv", "data.valid=train.tsv", "data.vocabulary.kind=char"),
    *("data.processes=1", "device=cpu", "model=sutskever", "model.hidden=8", "model.embedding=8", "model.dropout=0.3"),
    *("train.batch_size=4", "train.validate_every=7", "train.minutes=null"),
]


class Made:
    """Makes batches, and remembers on which thread."""

    def __init__(self) -> None:
        self.threads: list[tuple[int, str]] = []

    def __call__(self, indices: Indices) -> Batch:
        self.threads.append((int(indices[0]), threading.current_thread().name))
        sentences = random_sentences(len(indices), seed=int(indices[0]))
        return Batch(make_source(sentences), make_target(sentences), indices, 1)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread on the CPU, too."""
    monkeypatch.setattr(prefetching, "ASYNCHRONOUS_DEVICES", ("cuda", "cpu"))


@pytest.mark.usefixtures("threads")
def test_batches_come_in_order_from_the_thread() -> None:
    make = Made()
    with Prefetcher(make, CPU) as batches:
        for place, indices in enumerate(GROUPS, start=1):
            assert np.array_equal(batches.take(indices, GROUPS[place:]).indices, indices)
        assert len(names()) == 1
    assert sorted(make.threads)[0] == (0, threading.current_thread().name)  # the first, which nothing announced
    later = [(first, name.startswith("batches")) for first, name in make.threads if first]
    assert later == [(first, True) for first in range(3, 30, 3)]
    assert not names()


@pytest.mark.usefixtures("threads")
def test_no_more_than_two_are_made_ahead_and_what_was_not_announced_is_made_at_once() -> None:
    make = Made()
    with Prefetcher(make, CPU) as batches:
        batches.take(GROUPS[0], GROUPS[1:])
    assert len(make.threads) <= 3  # those that had not begun were dropped
    with Prefetcher(make, CPU) as batches:
        batches.take(GROUPS[0], GROUPS[1:])
        assert np.array_equal(batches.take(GROUPS[5], GROUPS[6:]).indices, GROUPS[5])
        assert np.array_equal(batches.take(GROUPS[6], []).indices, GROUPS[6])


def test_on_a_cpu_there_is_no_thread() -> None:
    make = Made()
    with Prefetcher(make, CPU) as batches:
        for place, indices in enumerate(GROUPS, start=1):
            batches.take(indices, GROUPS[place:])
            assert not names()
    assert {name for _, name in make.threads} == {threading.current_thread().name}


@pytest.mark.usefixtures("threads")
def test_an_error_of_the_thread_is_raised_where_the_batch_is_asked_for() -> None:
    error = OSError("the disk is gone")

    def make(indices: Indices) -> Batch:
        if np.array_equal(indices, GROUPS[2]):
            raise error
        return Made()(indices)

    with pytest.raises(OSError, match="the disk is gone") as caught, Prefetcher(make, CPU) as batches:
        batches.take(GROUPS[0], GROUPS[1:])
        batches.take(GROUPS[1], GROUPS[2:])
        batches.take(GROUPS[2], GROUPS[3:])
    assert caught.value is error
    assert not names()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [" ".join("abcdef"[token % 6] for token in row) for row in random_sentences(50, seed=0)]
    (tmp_path / "train.tsv").write_text("".join(f"{row}\t{row[::-1]}\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*settings: str) -> int:
    return cli.run(["train", *SETTINGS, *settings], config_directory())


def equal(one: str, other: str) -> bool:
    pair = [load_file(checkpoint.newest(Path("runs") / run).path / "model.safetensors") for run in (one, other)]
    return all(torch.equal(pair[0][name], pair[1][name]) for name in pair[0])


def stopping_at(step: int) -> Callable[..., Any]:
    updated = MetricsLog.updated  # called after each update

    def stopping(self: MetricsLog, progress: Progress, rate: float) -> None:
        updated(self, progress, rate)
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return stopping


@pytest.mark.parametrize("accumulate", ["1", "3"])
def test_training_is_the_same_with_and_without_a_thread_also_when_it_goes_on(
    place: Path, accumulate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over two epochs, stopped by a signal in the middle of one; no thread stays behind."""
    settings = ["train.steps=20" if accumulate == "1" else "train.steps=8", f"train.accumulate={accumulate}"]
    assert train(*settings, "run=without") == 0
    monkeypatch.setattr(prefetching, "ASYNCHRONOUS_DEVICES", ("cpu",))
    assert train(*settings, "run=with") == 0
    assert equal("without", "with")
    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "updated", stopping_at(5))
        assert train(*settings, "run=parts") == 130
        assert checkpoint.newest(place / "runs/parts").path.name == "step-0000005-stopped"
        assert not names()
    assert train("run=parts", "train.resume=true", *settings) == 0
    assert equal("without", "parts")
    assert not names()


@pytest.mark.usefixtures("threads")
def test_out_of_memory_names_the_batch_that_was_computed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the one that the thread has made ready meanwhile."""
    seen: list[Batch] = []

    def fail(self: TrainingLoss, batch: Batch, state: object) -> None:
        seen.append(batch)
        raise MemoryError

    monkeypatch.setattr(TrainingLoss, "forward", fail)
    assert train("run=r", "train.steps=3") == 2
    source, target = int(seen[0].source.lengths.max()) - 1, seen[0].target.shape[1] - 2
    sentence = f"at step 1, whose batch has 4 sentences, the longest source of {source} and longest target of {target} "
    assert re.search(re.escape(f"Out of memory on cpu {sentence}"), capsys.readouterr().err)
    assert not names()
