"""Tests of several processes: weights, scores and texts are the same for any number of processes."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from processes import Group
from safetensors.torch import load_file

from seqtool.errors import InputError
from seqtool.runtime import distributed
from seqtool.runtime.devices import choose_device

COMMANDS = Path(__file__).with_name("commands.py")
COMMON = [
    *("device=cpu", "threads=1", "data.processes=1", "train.minutes=null", "train.log_every=4", "train.batch_size=7"),
    *("validation.max_length=12", "model.embedding=12"),
]
TEXT = ["data.train=100", "data.valid=20", "data.test=40", "data.vocabulary.size=120"]
BAHDANAU = ["model.encoder_hidden=8", "model.decoder_hidden=12", "model.alignment=8", "model.maxout=8"]
NBEST = ["n_best=2", "format=jsonl"]
PHOTOS = ["data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "data.vocabulary.minimum_count=1"]
ATTEND = ["model=show_attend_tell", "model.hidden=12", "model.alignment=8", "model.encoder.size=32"]
STEPS = ["train.steps=10", "train.validate_every=5", "model.dropout=0"]
SGD = ["train", "run=sgd", *COMMON, *TEXT, *BAHDANAU, *STEPS, "optim=sgd", "optim.lr=0.5", "train.accumulate=2"]
TRANSFORMER = [
    *(
        "train",
        "run=transformer",
        *(setting for setting in COMMON if "embedding" not in setting),
        *TEXT,
        *STEPS,
        "optim=sgd",
    ),
    *("model=transformer", "model.width=8", "model.heads=2", "model.feed_forward=12", "optim.lr=0.5"),
]
ADAM = ["train", "run=adam", *COMMON, *TEXT, *STEPS, "model=sutskever", "model.hidden=12", "optim.lr=0.01"]
STREAMS = [
    *("train", "run=streams", *COMMON, *STEPS, "data=text", "data.train=photos/lines.txt", "model=language_model"),
    *("model.hidden=12", "optim=sgd", "optim.lr=0.5", "train.bptt=6", "train.accumulate=2"),
    "validation.max_length=100",
]
SOFT = [
    *("train", "run=soft", *COMMON, *PHOTOS, *ATTEND, *STEPS, "model.encoder.fine_tune_from=4"),
    *("train.batch_by=tokens", "train.batch_size=40", "model.encoder.augment=false"),
]
SEQUENCE = [
    *("train", "run=sequence", *COMMON, *PHOTOS, *ATTEND, *STEPS, "model.encoder.fine_tune_from=null", "optim=sgd"),
    *("model.encoder.augment=false", "optim.lr=0.1", "train.objective=sequence", "train.samples=3"),
]
HARD = [
    *("train", "run=hard", *COMMON, *PHOTOS, *ATTEND, "model.attention=hard", "train.steps=12"),
    *("train.validate_every=6", "train.resume=auto", "train.batch_size=5"),
]


def run_commands(directory: Path, *lines: Sequence[str], processes: int, **options: Any) -> str:
    """Run command lines in a directory, in a single process or in a group, and return their standard output.

    Runs whose weights are compared are trained in fp64, since Adam turns even rounding errors of gradients into full
    steps.
    """
    typed_lines = [["float64" if "optim=sgd" in line or line in (ADAM, SOFT) else "float32", *line] for line in lines]
    ended = Group(directory).run(*typed_lines, processes=processes, **options)
    assert ended.statuses == [0] * processes, ended.errors
    return ended.output


def run_with_torchrun(directory: Path, line: Sequence[str], die_at: int) -> str:
    """Run a command line in two processes of torchrun, the second of which is killed once, at a step. Returns their
    standard error.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    process = subprocess.run(
        [*torchrun, str(COMMANDS), str(die_at), json.dumps([["float32", *line]])],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stderr


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """For each number of processes, a directory with the results of all commands; all decode with the same weights."""
    directories: dict[int, Path] = {}
    for processes in (1, 2, 3):
        directory = directories[processes] = tmp_path_factory.mktemp(f"processes-{processes}")
        make_photos(directory / "photos")
        decoding = decoding_commands(directories[1] / "runs")
        run_commands(directory, SGD, STREAMS, TRANSFORMER, ADAM, SOFT, SEQUENCE, *decoding, processes=processes)
    return directories


def decoding_commands(runs: Path) -> list[list[str]]:
    """Return commands that decode in small batches with the models of these runs."""
    machine = ["device=cpu", "threads=1", "batch_size=3", "max_length=12"]
    pairs = ["references=photos/lines.txt", "device=cpu", "threads=1"]
    sample = ["sample=true", "temperature=3"]  # the likeliest translation is still empty
    return [
        [
            "translate",
            f"checkpoint={runs}/adam",
            "input=photos/lines.txt",
            "output=translations.txt",
            *machine,
            *sample,
        ],
        ["caption", f"checkpoint={runs}/soft", "images=photos", "output=captions.txt", *machine],
        ["eval", f"checkpoint={runs}/soft", "split=train", "output=captions.json", "bound=2", *machine],
        ["score", f"checkpoint={runs}/adam", *pairs, "sources=photos/lines.txt", "output=pairs.txt"],
        ["translate", f"checkpoint={runs}/adam", "input=photos/lines.txt", "output=lists.jsonl", *machine, *NBEST],
        ["rescore", "nbest=lists.jsonl", f"checkpoint={runs}/sgd", "weights=1,1,0", "output=best.txt", *pairs[1:]],
        ["embed", f"checkpoint={runs}/adam", "input=photos/lines.txt", "output=vectors.npy", *pairs[1:]],
        ["score", f"checkpoint={runs}/streams", *pairs, "output=texts.txt"],
        ["eval", f"checkpoint={runs}/adam", "output=test.txt", *machine, *sample],
        ["eval", f"checkpoint={runs}/sgd", "plot=figures", "samples=3", *machine, *sample],
    ]


def make_photos(directory: Path) -> None:
    """Write a few images, one of them broken, with captions, and a text file."""
    directory.mkdir()
    generator = np.random.default_rng(0)
    lines = []
    for i in range(11):
        colour = ("red", "green", "blue")[i % 3]
        pixels = np.full((32, 32, 3), 40, np.uint8)
        pixels[..., i % 3] = generator.integers(150, 255)
        Image.fromarray(pixels).save(directory / f"{i:02}.png")
        lines += [{"file": f"{i:02}.png", "caption": text} for text in (f"a {colour} picture", f"all is {colour}")]
    (directory / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / "broken.png").write_bytes(b"nothing")
    words = ["I", "have", "a", "cat", "but", "no", "house", ""]
    text = [" ".join(words[(i * j) % len(words)] for j in range(i % 5)) for i in range(50)]
    (directory / "lines.txt").write_text("\n".join(text) + "\n")


def weights(directory: Path, run: str, step: int) -> dict[str, torch.Tensor]:
    return load_file(directory / "runs" / run / "checkpoints" / f"step-{step:07}" / "model.safetensors")


def records(directory: Path, run: str) -> list[dict[str, Any]]:
    """Return the metrics of a run without times and memory."""
    lines = (directory / "runs" / run / "metrics.jsonl").read_text().splitlines()
    times = ("seconds", "tokens_per_second", "decoded_tokens_per_second", "peak_memory")
    return [{name: value for name, value in json.loads(line).items() if name not in times} for line in lines]


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize(
    ("run", "tolerance"),
    [("sgd", 1e-9), ("streams", 1e-9), ("transformer", 1e-9), ("adam", 1e-7), ("soft", 1e-7), ("sequence", 1e-9)],
)
def test_weights_equal_those_of_one_process(
    directories: dict[int, Path], run: str, tolerance: float, processes: int
) -> None:
    for step in (5, 10):
        expected, actual = (weights(directories[n], run, step) for n in (1, processes))
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, rtol=tolerance, atol=tolerance * float(value.abs().max()))


def test_a_single_stream_is_resumed_by_one_or_two_processes(tmp_path: Path) -> None:
    """A run saved by two processes is resumed by one, and the reverse."""
    make_photos(tmp_path / "photos")
    arguments = [*STREAMS, "train.batch_size=1", "train.resume=auto"]
    for step, processes in ((5, 2), (10, 1), (15, 2)):
        run_commands(tmp_path, [*arguments, f"train.steps={step}"], processes=processes)
    file = tmp_path / "runs/streams/checkpoints/step-0000015/training.safetensors"
    assert load_file(file)["carried.000"].shape == (1, 12)


@pytest.mark.parametrize("processes", [2, 3])
def test_states_of_streams_equal_those_of_one_process(directories: dict[int, Path], processes: int) -> None:
    """The states carried to the next window are compared in the order of the seven streams."""
    file = "runs/streams/checkpoints/step-0000010/training.safetensors"
    expected, actual = (load_file(directories[n] / file) for n in (1, processes))
    carried = sorted(name for name in expected if name.startswith("carried."))
    assert len(carried) == 4 and all(expected[name].shape == (7, 12) for name in carried)
    for name in carried:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("run", ["sgd", "streams", "adam", "soft"])
def test_metrics_equal_those_of_one_process(directories: dict[int, Path], run: str, processes: int) -> None:
    expected, actual = (records(directories[n], run) for n in (1, processes))
    assert len(expected) == len(actual) == 4
    for record, expected_record in zip(actual, expected, strict=True):
        assert record == pytest.approx(expected_record, rel=1e-4)


@pytest.mark.parametrize("processes", [2, 3])
def test_mean_rewards_equal_those_of_one_process(directories: dict[int, Path], processes: int) -> None:
    """Although the processes have different numbers of samples."""
    expected, actual = (
        [record["reward"] for record in records(directories[n], "sequence") if "reward" in record]
        for n in (1, processes)
    )
    assert expected and actual == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize(
    "file",
    [
        "translations.txt",
        "captions.txt",
        "captions.json",
        "test.txt",
        "pairs.txt",
        "texts.txt",
        "best.txt",
        "vectors.npy",
    ],
)
def test_text_equals_that_of_one_process(directories: dict[int, Path], file: str, processes: int) -> None:
    text = (directories[processes] / file).read_bytes()
    assert text == (directories[1] / file).read_bytes()
    assert len(text) > 200


@pytest.mark.parametrize("processes", [2, 3])
def test_figures_equal_those_of_one_process(directories: dict[int, Path], processes: int) -> None:
    actual, expected = (sorted(file.name for file in (directories[n] / "figures").iterdir()) for n in (processes, 1))
    assert actual == expected and len(expected) == 4 and not (directories[processes] / "None").exists()


def test_lines_from_a_pipe_are_translated_once_and_in_order(directories: dict[int, Path]) -> None:
    arguments = ["translate", "checkpoint=runs/adam", "device=cpu", "threads=1", "batch_size=1", "max_length=12"]
    arguments += ["sample=true", "temperature=3"]
    text = (directories[1] / "photos" / "lines.txt").read_text()
    output = run_commands(directories[1], arguments, processes=2, text=text)
    assert output == (directories[1] / "translations.txt").read_text()


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "local_rank", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("auto", "cuda"):
        with pytest.raises(InputError) as error:
            choose_device(name)
        assert str(error.value) == (
            "More processes were started than the 2 GPUs that torch sees here: "
            "lower --nproc-per-node, or set device=cpu."
        )
    assert choose_device("cpu") == torch.device("cpu")


def test_a_run_with_a_killed_worker_ends_the_same(tmp_path: Path) -> None:
    """Each process has its own random numbers, for dropout and hard attention, and its own baseline."""
    checkpoints = {}
    for name in ("uninterrupted", "killed"):
        directory = tmp_path / name
        directory.mkdir()
        make_photos(directory / "photos")
        if name == "uninterrupted":
            run_commands(directory, HARD, processes=2)
        else:
            errors = run_with_torchrun(directory, HARD, die_at=8)
            assert "exitcode: -9" in errors and "Lost the connection to another process (" in errors
        checkpoints[name] = directory / "runs/hard/checkpoints/step-0000012"
    for file in ("model.safetensors", "training.safetensors"):
        uninterrupted, killed = (load_file(checkpoints[name] / file) for name in ("uninterrupted", "killed"))
        assert uninterrupted.keys() == killed.keys()
        for name, value in uninterrupted.items():
            assert torch.equal(value, killed[name]), name
    assert not torch.equal(uninterrupted["random.cpu"], uninterrupted["random.cpu.1"])
    assert uninterrupted["loss.baseline"].isfinite()
