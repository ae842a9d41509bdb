"""Want of memory ends every command with one sentence that says what to lower, whatever the memory's owner calls it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import demo_models
import pytest
import torch
from PIL import Image
from torch import nn

import seqtool
from seqtool.cli import main as cli
from seqtool.demo import answers
from seqtool.demo.app import make_app
from seqtool.demo.engine import Engine
from seqtool.errors import InputError, OutOfMemoryError
from seqtool.models.backbone import Backbone
from seqtool.runtime.files import config_directory

ERRORS = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cuda call": RuntimeError("CUDA error: out of memory"),
    "mps": RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)."),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you tried"),
    "windows": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    "mapping": RuntimeError("unable to mmap 64 bytes from file <x>: Cannot allocate memory (12)"),
    "c++": RuntimeError("std::bad_alloc"),
    "python": MemoryError(),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cublas handle": RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "cudnn 9": RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    "cudnn handle": RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    "cusolver": RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
}
COMMON = ["data.processes=1", "device=cpu", "threads=1", "train.minutes=null", "train.steps=1", "model.embedding=8"]
SHORT = ["validation.beam=1", "validation.max_length=5"]
PAIRS = ["data.train=40", "data.valid=2", "data.test=2", "data.vocabulary.size=80", "model=sutskever"]
PAIRS += ["model.hidden=8", "model.layers=1", *SHORT]
SCENES = ["data=scenes", "data.train=8", "data.valid=2", "data.test=2", "data.vocabulary.minimum_count=1"]
SCENES += ["model=show_tell", "model.hidden=8", *SHORT]
FROZEN = ["model.encoder.fine_tune_from=null", "model.encoder.augment=false"]
TEXT = ["data=text", "data.train=text.txt", "data.valid=text.txt", "model=language_model", "model.hidden=8"]


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a translator, a captioner and a language model."""
    with contextlib.chdir(tmp_path_factory.mktemp("place")):
        Path("text.txt").write_text("the cat sees the dog\n" * 50)
        Image.new("RGB", (32, 32)).save("picture.png")
        Path("lines.txt").write_text("I have a cat.\nI have a dog.\n")
        for name, settings in (("pairs", PAIRS), ("scenes", SCENES), ("text", TEXT)):
            assert run("train", *COMMON, *settings, f"run={name}") == 0
        yield Path.cwd()


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def sentence(capfd: pytest.CaptureFixture[str]) -> str:
    """The last line of standard error."""
    error = capfd.readouterr().err
    assert "Traceback" not in error
    return error.splitlines()[-1]


DECODING = {
    "translate": (["checkpoint=runs/pairs", "input=lines.txt"], "lower batch_size, beam"),
    "score": (["checkpoint=runs/pairs", "sources=lines.txt", "references=lines.txt"], "shorter texts"),
    "eval": (["checkpoint=runs/pairs", "split=test"], "lower batch_size, beam"),
    "caption": (["checkpoint=runs/scenes", "images=picture.png"], "lower batch_size, beam"),
    "generate": (["checkpoint=runs/text", "prompt=the"], "lower n or max_length"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_every_memory_is_known(
    place: Path, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nn.functional, "embedding", failing(ERRORS[name]))
    assert run("translate", *DECODING["translate"][0], "device=cpu") == 2
    said = sentence(capfd)
    assert said.startswith("seqtool: Out of memory on cpu") and "lower batch_size, beam" in said
    assert ("_STATUS_" in said) == ("_STATUS_" in str(ERRORS[name])), "a library's own name for it is said"


@pytest.mark.parametrize("command", DECODING)
@pytest.mark.parametrize("part", ["model", "batch"])
def test_every_command_says_what_to_lower(
    place: Path, command: str, part: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments, lower = DECODING[command]
    if part == "model":
        monkeypatch.setattr(nn.Module, "to", failing(ERRORS["cuda"]))
    else:
        monkeypatch.setattr(nn.functional, "embedding", failing(ERRORS["cublas"]))
    assert run(command, *arguments, "device=cpu") == 2
    said = sentence(capfd)
    assert said.startswith("seqtool: Out of memory") and (lower if part == "batch" else "model's weights") in said


def test_what_was_translated_is_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("long.txt").write_text("I have a cat.\n" * 200)
    embedding, left = nn.functional.embedding, [300]

    def fail_later(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise ERRORS["cuda"]
        return embedding(*arguments, **named)

    monkeypatch.setattr(nn.functional, "embedding", fail_later)
    arguments = ["batch_size=1", "beam=1", "max_length=5", "device=cpu", "input=long.txt", "output=out.txt"]
    assert run("translate", "checkpoint=runs/pairs", *arguments) == 2
    assert 0 < len(Path("out.txt.partial").read_text().splitlines()) < 200


def test_a_notebook_is_told_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = seqtool.load("runs/pairs", device="cpu")
    monkeypatch.setattr(nn.functional, "embedding", failing(ERRORS["cuda"]))
    with pytest.raises(InputError, match="Out of memory on cpu while decoding: lower batch_size"):
        translator.translate(["I have a cat."])


TRAINING: dict[str, tuple[Any, str, str]] = {
    "moving the model": (nn.Module, "to", "for the model's weights"),
    "the first moments": (torch.amp.GradScaler, "step", "in the optimiser's step"),
    "the gradient's norm": (nn.utils, "get_total_norm", "in the optimiser's step"),
    "the backward pass": (torch.Tensor, "backward", "lower train.batch_size"),
    "anything else": (torch, "get_rng_state", "lower train.batch_size"),
}


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("error", ["cuda", "cudnn handle"])
def test_training_says_what_to_lower(
    place: Path, name: str, error: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    owner, attribute, said = TRAINING[name]
    monkeypatch.setattr(owner, attribute, failing(ERRORS[error]))
    assert run("train", *COMMON, *PAIRS, f"run={name.replace(' ', '-')}-{error[:4]}".replace("'", "")) == 2
    last = sentence(capfd)
    assert last.startswith("seqtool: Out of memory") and said in last


@pytest.mark.parametrize("command", ["prepare", "train"])
@pytest.mark.parametrize(("part", "said"), [("to", "model's weights"), ("forward", "lower model.encoder.size")])
def test_encoding_images_says_what_to_lower(
    place: Path, command: str, part: str, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the images of a frozen backbone are prepared with."""
    monkeypatch.setattr(Backbone, part, failing(ERRORS["cuda"]))
    assert run(command, *COMMON, *SCENES, *FROZEN, "data.cache=other") == 2
    line = sentence(capfd)
    assert line.startswith("seqtool: Out of memory on cpu") and said in line and "data.processes" not in line


def test_a_resumed_run_is_not_called_damaged(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.optim.Optimizer, "load_state_dict", failing(ERRORS["cuda"]))
    assert run("train", "run=pairs", "train.resume=true", "train.steps=2") == 2
    assert sentence(capfd).startswith("seqtool: Out of memory in train: lower train.batch_size")


def test_the_other_jobs_of_a_sweep_go_on(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    step, failed = torch.optim.Adam.step, []

    def fail_once(*arguments: Any, **named: Any) -> Any:
        if not failed:
            failed.append(True)
            raise ERRORS["cuda"]
        return step(*arguments, **named)

    monkeypatch.setattr(torch.optim.Adam, "step", fail_once)
    assert run("train", "-m", *COMMON, *PAIRS, "run=swept", "seed=1,2") == 2
    error = capfd.readouterr().err
    assert "seqtool: Out of memory" in error and "1 of 2 jobs failed" in error and "Traceback" not in error


@pytest.mark.parametrize("error", [ERRORS["cudnn"], ERRORS["python"], OutOfMemoryError("from decoding")])
def test_the_demo_answers_with_a_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers.Translate, "answer", failing(error))
    engine = Engine(lambda: [None])
    engine.start()
    app, sent = make_app(engine, host="127.0.0.1", port=80, token=None), []
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/translate", "headers": headers, "query_string": b""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"sentences": ["a"]}', "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        demo_models.alone(lambda: app(scope, receive, send))
    finally:
        engine.stop()
    assert sent[0]["status"] == 503 and sent[1]["body"].startswith(b"Out of memory: ask for less at once")
