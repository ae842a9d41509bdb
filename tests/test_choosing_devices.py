"""Tests of the choice of a device: GPUs of groups of processes, reasons for missing GPUs, and equal results."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pretended_gpu
import pytest
import torch
from small_models import CAPTIONERS, MODELS, make_captioner, make_model, random_images, random_sentences

import seqtool
import seqtool.cli.main as cli
from seqtool.data.batches import Batch, make_source, make_target
from seqtool.errors import InputError
from seqtool.runtime import distributed
from seqtool.runtime.devices import choose_device
from seqtool.runtime.files import config_directory
from seqtool.training.gradient_flow import flow
from seqtool.training.losses import TrainingLoss

RECURRENT = [name for name in (*MODELS, *CAPTIONERS) if "transformer" not in name]


@pytest.fixture
def chosen_devices(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that became torch's current GPU, on a simulated machine with two GPUs."""
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    return devices


def join_group(monkeypatch: pytest.MonkeyPatch, *, rank: int, size: int) -> None:
    """Make this process one of a group of this size."""
    monkeypatch.setattr(distributed, "local_rank", lambda: rank)
    monkeypatch.setattr(distributed, "local_size", lambda: size)


def test_a_named_gpu_becomes_torchs_current_gpu(chosen_devices: list[torch.device]) -> None:
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert chosen_devices == [torch.device("cuda:1")]
    choose_device("cpu")
    assert len(chosen_devices) == 1


def test_a_model_uses_its_gpu_only_while_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading and computing leave the caller's current GPU as it was; the model of this test stays on the CPU."""
    events: list[Any] = []

    @contextmanager
    def record_device(device: torch.device) -> Iterator[None]:
        events.append(device)
        yield
        events.append("left")

    monkeypatch.setattr(torch.cuda, "set_device", events.append)
    monkeypatch.setattr(torch.cuda, "device", record_device)
    translator: Any = seqtool.load("builtin/words", device="cpu")
    assert events == []
    translator.device = torch.device("cuda:1")
    monkeypatch.setattr("seqtool.predict.predictor.decode", lambda *_, **__: events.append("computing") or [[]])
    translator.hypotheses(["I see."])
    assert events == [torch.device("cuda:1"), "computing", "left"]


@pytest.mark.parametrize("rank", [0, 1, 7])
@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_process_of_a_group_may_see_a_single_gpu(
    chosen_devices: list[torch.device], rank: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    join_group(monkeypatch, rank=rank, size=8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device(name) == torch.device("cuda:0")


class Store:
    """A stand-in for torch's stores, through which processes exchange values."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = value
        return self.values[key].encode()


def test_two_processes_do_not_share_a_gpu(chosen_devices: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes on a machine with one GPU, the second is refused; the first may choose it again."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(distributed, "_store", Store())
    gpus = {0: "GPU-a", 1: "GPU-a", 2: "GPU-b"}
    for rank, refused in ((0, False), (0, False), (1, True), (2, False)):
        join_group(monkeypatch, rank=rank, size=3)
        monkeypatch.setattr(distributed, "_rank", rank)
        properties = type("Properties", (), {"uuid": gpus[rank]})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, result=properties: result)
        if refused:
            with pytest.raises(InputError, match=r"^More processes were started than the 1 GPU that torch sees here: "):
                choose_device("cuda")
        else:
            assert choose_device("cuda") == torch.device("cuda:0")


def fail_without_driver() -> None:
    raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU.")


def fail_with_old_driver() -> None:
    raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update it.")


REASONS: dict[str, tuple[Any, str | None, Any, str]] = {
    "torch without CUDA": (None, None, fail_without_driver, "built without CUDA"),
    "no driver": ("13.0", None, fail_without_driver, "Found no NVIDIA driver on your system"),
    "old driver": ("13.0", None, fail_with_old_driver, "too old (found version 11040)"),
    "hidden": ("13.0", "", lambda: None, "CUDA_VISIBLE_DEVICES=''"),
    "hidden by number": ("13.0", "-1", fail_without_driver, "CUDA_VISIBLE_DEVICES='-1'"),
}


@pytest.mark.parametrize("name", REASONS)
@pytest.mark.parametrize("rank", [None, 1])
def test_the_reason_for_a_missing_gpu_is_reported(name: str, rank: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    version, visible, start, reason = REASONS[name]
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "init", start)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if rank is not None:
        join_group(monkeypatch, rank=rank, size=2)
    with pytest.raises(InputError) as error:
        choose_device("cuda")
    assert "0 GPUs (" in str(error.value) and reason in str(error.value) and "device=cpu" in str(error.value)


def test_an_unknown_device_is_refused_with_the_choices() -> None:
    with pytest.raises(InputError, match=r"^Unknown device 'gpu'; choose auto, cpu, mps, cuda or cuda:0, cuda:1, …"):
        choose_device("gpu")


@pytest.mark.skipif(pretended_gpu.reason_unavailable() is not None, reason=str(pretended_gpu.reason_unavailable()))
@pytest.mark.parametrize("name", RECURRENT)
def test_gradient_flow_is_measured_without_float64_on_the_device(name: str) -> None:
    """Apple's GPUs lack float64; the results must equal those on the CPU."""
    target = make_target(random_sentences(3, seed=2))
    if name in MODELS:
        model, batch = make_model(name), Batch(make_source(random_sentences(3, seed=1)), target, torch.arange(3), 0)
    else:
        model, batch = make_captioner(name), Batch(random_images(3, seed=1), target, torch.arange(3), 0)
    expected = flow(model, batch)
    with pretended_gpu.simulate_gpu(has_float64=False):
        actual = flow(model.to("cuda"), batch.to(torch.device("cuda")))
    for kind in ("gradients", "singular_values"):
        assert str(actual[kind].keys()) == str(expected[kind].keys())
    rows, expected_rows = (result["singular_values"].values() for result in (actual, expected))
    values, expected_values = ([value for row in table for value in row] for table in (rows, expected_rows))
    assert values == pytest.approx(expected_values, rel=1e-3, abs=1e-4)


def test_skipped_steps_do_not_advance_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp16, steps are skipped at first, until the scale of the loss fits."""
    monkeypatch.chdir(tmp_path)
    settings = ["train", "data.train=40", "data.valid=2", "data.test=2", "data.vocabulary.size=80", "device=cpu"]
    settings += ["model=sutskever", "model.embedding=8", "model.hidden=8", "model.layers=1", "data.processes=1"]
    settings += ["threads=1", "schedule=inverse_square_root", "schedule.warmup=3", "train.log_every=1"]
    settings += ["train.minutes=null", "train.batch_size=4", "train.validate_every=100", "validation.max_length=3"]

    def rates(run: str, steps: int) -> list[float]:
        assert cli.run([*settings, f"run={run}", f"train.steps={steps}"], config_directory()) == 0
        records = [json.loads(line) for line in Path(f"runs/{run}/metrics.jsonl").read_text().splitlines()]
        return [record["learning_rate"] for record in records if "learning_rate" in record]

    expected = rates("whole", 6)
    forward, training_calls = TrainingLoss.forward, []

    def infinite_at_first(self: TrainingLoss, *arguments: Any) -> Any:
        loss = forward(self, *arguments)
        training_calls.append(self.training)
        return loss._replace(total=loss.total * float("inf")) if self.training and sum(training_calls) <= 2 else loss

    monkeypatch.setattr(TrainingLoss, "forward", infinite_at_first)
    assert rates("skipping", 8)[2:] == expected
