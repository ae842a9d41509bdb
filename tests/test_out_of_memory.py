"""Tests of running out of memory: every command ends with a message that says what to lower, whatever the error."""

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
SHORT_VALIDATION = ["validation.beam=1", "validation.max_length=5"]
TRANSLATION = ["data.train=40", "data.valid=2", "data.test=2", "data.vocabulary.size=80", "model=sutskever"]
TRANSLATION += ["model.hidden=8", "model.layers=1", *SHORT_VALIDATION]
CAPTIONING = ["data=scenes", "data.train=8", "data.valid=2", "data.test=2", "data.vocabulary.minimum_count=1"]
CAPTIONING += ["model=show_tell", "model.hidden=8", *SHORT_VALIDATION]
FROZEN = ["model.encoder.fine_tune_from=null", "model.encoder.augment=false"]
LANGUAGE_MODEL = ["data=text", "data.train=text.txt", "data.valid=text.txt", "model=language_model", "model.hidden=8"]


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with a translator, a captioner and a language model."""
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        Path("text.txt").write_text("the cat sees the dog\n" * 50)
        Image.new("RGB", (32, 32)).save("picture.png")
        Path("lines.txt").write_text("I have a cat.\nI have a dog.\n")
        for name, settings in (("pairs", TRANSLATION), ("scenes", CAPTIONING), ("text", LANGUAGE_MODEL)):
            assert run("train", *COMMON, *settings, f"run={name}") == 0
        yield Path.cwd()


def raiser(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def last_error(capfd: pytest.CaptureFixture[str]) -> str:
    """Return the last line of standard error, which must hold no traceback."""
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
def test_every_kind_of_memory_error_is_recognised(
    workspace: Path, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nn.functional, "embedding", raiser(ERRORS[name]))
    assert run("translate", *DECODING["translate"][0], "device=cpu") == 2
    message = last_error(capfd)
    assert message.startswith("seqtool: Out of memory on cpu") and "lower batch_size, beam" in message
    assert ("_STATUS_" in message) == ("_STATUS_" in str(ERRORS[name])), "a library's own error code is reported"


@pytest.mark.parametrize("command", DECODING)
@pytest.mark.parametrize("part", ["model", "batch"])
def test_every_command_says_what_to_lower(
    workspace: Path, command: str, part: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments, lower = DECODING[command]
    if part == "model":
        monkeypatch.setattr(nn.Module, "to", raiser(ERRORS["cuda"]))
    else:
        monkeypatch.setattr(nn.functional, "embedding", raiser(ERRORS["cublas"]))
    assert run(command, *arguments, "device=cpu") == 2
    message = last_error(capfd)
    assert message.startswith("seqtool: Out of memory") and (lower if part == "batch" else "model's weights") in message


def test_finished_translations_are_kept(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("long.txt").write_text("I have a cat.\n" * 200)
    embedding, calls_left = nn.functional.embedding, [300]

    def fail_later(*arguments: Any, **keywords: Any) -> Any:
        calls_left[0] -= 1
        if not calls_left[0]:
            raise ERRORS["cuda"]
        return embedding(*arguments, **keywords)

    monkeypatch.setattr(nn.functional, "embedding", fail_later)
    arguments = ["batch_size=1", "beam=1", "max_length=5", "device=cpu", "input=long.txt", "output=out.txt"]
    assert run("translate", "checkpoint=runs/pairs", *arguments) == 2
    assert 0 < len(Path("out.txt.partial").read_text().splitlines()) < 200


def test_notebooks_get_the_message_too(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = seqtool.load("runs/pairs", device="cpu")
    monkeypatch.setattr(nn.functional, "embedding", raiser(ERRORS["cuda"]))
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
    workspace: Path, name: str, error: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    owner, attribute, hint = TRAINING[name]
    monkeypatch.setattr(owner, attribute, raiser(ERRORS[error]))
    assert run("train", *COMMON, *TRANSLATION, f"run={name.replace(' ', '-')}-{error[:4]}".replace("'", "")) == 2
    message = last_error(capfd)
    assert message.startswith("seqtool: Out of memory") and hint in message


@pytest.mark.usefixtures("workspace")
@pytest.mark.parametrize("command", ["prepare", "train"])
@pytest.mark.parametrize(("part", "hint"), [("to", "model's weights"), ("forward", "lower model.encoder.size")])
def test_encoding_images_says_what_to_lower(
    command: str, part: str, hint: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Images are encoded while data are prepared if their backbone is frozen."""
    monkeypatch.setattr(Backbone, part, raiser(ERRORS["cuda"]))
    assert run(command, *COMMON, *CAPTIONING, *FROZEN, "data.cache=other") == 2
    message = last_error(capfd)
    assert message.startswith("seqtool: Out of memory on cpu") and hint in message and "data.processes" not in message


def test_a_resumed_run_is_not_called_damaged(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.optim.Optimizer, "load_state_dict", raiser(ERRORS["cuda"]))
    assert run("train", "run=pairs", "train.resume=true", "train.steps=2") == 2
    assert last_error(capfd).startswith("seqtool: Out of memory in train: lower train.batch_size")


def test_the_other_jobs_of_a_sweep_continue(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    step, failed = torch.optim.Adam.step, []

    def fail_once(*arguments: Any, **keywords: Any) -> Any:
        if not failed:
            failed.append(True)
            raise ERRORS["cuda"]
        return step(*arguments, **keywords)

    monkeypatch.setattr(torch.optim.Adam, "step", fail_once)
    assert run("train", "-m", *COMMON, *TRANSLATION, "run=swept", "seed=1,2") == 2
    error = capfd.readouterr().err
    assert "seqtool: Out of memory" in error and "1 of 2 jobs failed" in error and "Traceback" not in error


@pytest.mark.parametrize("error", [ERRORS["cudnn"], ERRORS["python"], OutOfMemoryError("from decoding")])
def test_the_demo_answers_with_a_message(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers.Translate, "answer", raiser(error))
    engine = Engine([lambda: None])
    engine.start()
    app, responses = make_app(engine, host="127.0.0.1", port=80, token=None), []
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/translate", "headers": headers, "query_string": b""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"sentences": ["a"]}', "more_body": False}

    async def send(message: Any) -> None:
        responses.append(message)

    try:
        demo_models.run_in_new_thread(lambda: app(scope, receive, send))
    finally:
        engine.stop()
    assert responses[0]["status"] == 503 and responses[1]["body"].startswith(b"Out of memory: ask for less at once")
