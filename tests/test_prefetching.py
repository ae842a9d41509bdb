"""Tests of prefetching: a thread makes the same batches in the same order, passes errors on, and ends."""

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


class BatchMaker:
    """Makes batches, and records the first index of each and the thread that made it."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []

    def __call__(self, indices: Indices) -> Batch:
        self.calls.append((int(indices[0]), threading.current_thread().name))
        sentences = random_sentences(len(indices), seed=int(indices[0]))
        return Batch(make_source(sentences), make_target(sentences), indices, 1)


def prefetching_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.fixture
def cpu_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a thread make batches on the CPU, too."""
    monkeypatch.setattr(prefetching, "ASYNCHRONOUS_DEVICES", ("cuda", "cpu"))


@pytest.mark.usefixtures("cpu_thread")
def test_batches_come_in_order_from_the_thread() -> None:
    make = BatchMaker()
    with Prefetcher(make, CPU) as batches:
        for count, indices in enumerate(GROUPS, start=1):
            assert np.array_equal(batches.take(indices, GROUPS[count:]).indices, indices)
        assert len(prefetching_threads()) == 1
    assert sorted(make.calls)[0] == (0, threading.current_thread().name)  # the first batch was not announced
    announced = [(first, name.startswith("batches")) for first, name in make.calls if first]
    assert announced == [(first, True) for first in range(3, 30, 3)]
    assert not prefetching_threads()


@pytest.mark.usefixtures("cpu_thread")
def test_two_batches_are_made_ahead_and_others_when_taken() -> None:
    make = BatchMaker()
    with Prefetcher(make, CPU) as batches:
        batches.take(GROUPS[0], GROUPS[1:])
    assert len(make.calls) <= 3  # announced batches that had not begun were dropped
    with Prefetcher(make, CPU) as batches:
        batches.take(GROUPS[0], GROUPS[1:])
        assert np.array_equal(batches.take(GROUPS[5], GROUPS[6:]).indices, GROUPS[5])
        assert np.array_equal(batches.take(GROUPS[6], []).indices, GROUPS[6])


def test_a_cpu_uses_no_thread() -> None:
    make = BatchMaker()
    with Prefetcher(make, CPU) as batches:
        for count, indices in enumerate(GROUPS, start=1):
            batches.take(indices, GROUPS[count:])
            assert not prefetching_threads()
    assert {name for _, name in make.calls} == {threading.current_thread().name}


@pytest.mark.usefixtures("cpu_thread")
def test_an_error_in_the_thread_is_raised_when_its_batch_is_taken() -> None:
    error = OSError("the disk is gone")

    def make(indices: Indices) -> Batch:
        if np.array_equal(indices, GROUPS[2]):
            raise error
        return BatchMaker()(indices)

    with pytest.raises(OSError, match="the disk is gone") as caught, Prefetcher(make, CPU) as batches:
        batches.take(GROUPS[0], GROUPS[1:])
        batches.take(GROUPS[1], GROUPS[2:])
        batches.take(GROUPS[2], GROUPS[3:])
    assert caught.value is error
    assert not prefetching_threads()


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [" ".join("abcdef"[token % 6] for token in row) for row in random_sentences(50, seed=0)]
    (tmp_path / "train.tsv").write_text("".join(f"{row}\t{row[::-1]}\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*settings: str) -> int:
    return cli.run(["train", *SETTINGS, *settings], config_directory())


def same_weights(*runs: str) -> bool:
    first, second = (load_file(checkpoint.newest(Path("runs") / run).path / "model.safetensors") for run in runs)
    return all(torch.equal(first[name], second[name]) for name in first)


def stop_at(step: int) -> Callable[..., Any]:
    updated = MetricsLog.updated  # called after each update

    def update_and_stop(self: MetricsLog, progress: Progress, rate: float) -> None:
        updated(self, progress, rate)
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return update_and_stop


@pytest.mark.parametrize("accumulate", ["1", "3"])
def test_a_thread_changes_neither_training_nor_resuming(
    workspace: Path, accumulate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train for two epochs; one run is stopped by a signal in mid-epoch and resumed. No thread is left over."""
    settings = ["train.steps=20" if accumulate == "1" else "train.steps=8", f"train.accumulate={accumulate}"]
    assert train(*settings, "run=without") == 0
    monkeypatch.setattr(prefetching, "ASYNCHRONOUS_DEVICES", ("cpu",))
    assert train(*settings, "run=with") == 0
    assert same_weights("without", "with")
    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "updated", stop_at(5))
        assert train(*settings, "run=parts") == 130
        assert checkpoint.newest(workspace / "runs/parts").path.name == "step-0000005-stopped"
        assert not prefetching_threads()
    assert train("run=parts", "train.resume=true", *settings) == 0
    assert same_weights("without", "parts")
    assert not prefetching_threads()


@pytest.mark.usefixtures("cpu_thread")
def test_out_of_memory_names_the_batch_that_was_computed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error does not name the batch that the thread has made in the meantime."""
    batches: list[Batch] = []

    def fail(self: TrainingLoss, batch: Batch, state: object) -> None:
        batches.append(batch)
        raise MemoryError

    monkeypatch.setattr(TrainingLoss, "forward", fail)
    assert train("run=r", "train.steps=3") == 2
    source, target = int(batches[0].source.lengths.max()) - 1, batches[0].target.shape[1] - 2
    clause = f"at step 1, whose batch has 4 sentences, the longest source of {source} and longest target of {target} "
    assert re.search(re.escape(f"Out of memory on cpu {clause}"), capsys.readouterr().err)
    assert not prefetching_threads()
