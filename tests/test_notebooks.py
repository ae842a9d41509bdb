"""Tests of `seqtool` in other programs: what lists may hold, what is refused, and that nothing global changes."""

import copy
import gc
import io
import json
import logging
import math
import os
import pickle
import re
import shutil
import signal
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import matplotlib.style
import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from PIL import Image

import seqtool
from seqtool.cli import main as cli
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory
from seqtool.settings import leaves
from seqtool.training.recording import MetricsLog
from seqtool.view import plots

SENTENCES = ["I have a cat.", "She sees the house."]
CONFIGS, ROOT = config_directory(), Path(__file__).parent.parent
SECRET = "qwertz"  # in objects whose content no message may print


class Column:
    """A stand-in for a column of a pandas table: it has a length and items, but no positions to index by."""

    ndim = 1

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __contains__(self, item: object) -> bool:
        return item in self.items


class Table(Column):
    ndim = 2


class Talkative:
    def __repr__(self) -> str:
        return SECRET * 100_000


@pytest.fixture(scope="module")
def models(shown_runs: Path) -> dict[str, Any]:
    settings = {"text": {"max_length": 8}, "attend": {"max_length": 8}, "scenes": {"max_length": 4}, "fixed": {}}
    return {name: seqtool.load(shown_runs / "runs" / name, device="cpu", **limit) for name, limit in settings.items()}


@pytest.fixture(scope="module")
def picture(shown_runs: Path) -> Path:
    return next((shown_runs / "data" / "scenes").rglob("*.png"))


@pytest.mark.parametrize("collect", [tuple, np.array, Column, lambda texts: [np.str_(text) for text in texts]])
def test_texts_may_come_in_any_kind_of_list(models: dict[str, Any], collect: Callable[[list[str]], Any]) -> None:
    translator, texts = models["attend"], collect(SENTENCES)
    assert translator.translate(texts) == translator.translate(SENTENCES)
    assert translator.score(texts, texts) == translator.score(SENTENCES, SENTENCES)
    assert [result.text for result in translator.forced(texts, texts)] == SENTENCES
    assert len(models["text"].generate(texts)) == 2


UNFIT_TEXTS: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (lambda: None, "not None"),
    "number": (lambda: 3.5, "not a float"),
    "bytes": (lambda: SECRET.encode() * 1000, "not a bytes"),
    "generator": (lambda: (sentence for sentence in SENTENCES), "not a generator"),
    "dict": (lambda: {SECRET: SECRET}, "not a dict"),
    "set": (lambda: {SECRET}, "not a set"),
    "ordered": (lambda: OrderedDict({SECRET: SECRET}), "not an OrderedDict"),
    "table": (lambda: Table(SENTENCES), "not a Table"),
    "array": (lambda: np.zeros((3, 3)), r"not an array of float64 \(3 × 3\)"),
    "object": (Talkative, "not a Talkative"),
    "list with none": (lambda: [*SENTENCES, None], "number 3 is None"),
    "list with bytes": (lambda: [SECRET.encode()], "number 1 is a bytes"),
    "list with a path": (lambda: [Path(SECRET)], "number 1 is a PosixPath"),
    "list with an object": (lambda: ["a", Talkative()], "number 2 is a Talkative"),
    "column with a gap": (lambda: Column(["a", float("nan")]), "number 2 is a float"),
    "tensor": (lambda: torch.zeros(1000), "number 1 is a Tensor"),
    "floats": (lambda: np.zeros(5), "number 1 is a float64"),
}


@pytest.mark.parametrize("kind", UNFIT_TEXTS)
def test_unfit_lists_of_texts_are_refused(models: dict[str, Any], kind: str) -> None:
    make, reason = UNFIT_TEXTS[kind]
    for call in (
        models["attend"].translate,
        models["text"].generate,
        lambda texts: models["attend"].score(texts, SENTENCES),
        lambda texts: models["attend"].forced(SENTENCES, texts),
    ):
        with pytest.raises(InputError, match=reason) as error:
            call(make())
        assert SECRET not in str(error.value) and len(str(error.value)) < 150


def open_temporary_file(path: Path) -> Any:
    """Return a temporary file, positioned at its end. Its class is not derived from Python's own classes of files."""
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115
    file.write(path.read_bytes())
    return file


PICTURES: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "numpy string": lambda path: np.str_(path),
    "pillow": Image.open,
    "array": lambda path: np.asarray(Image.open(path).convert("RGB")),
    "array, strided": lambda path: np.asarray(Image.open(path).convert("RGB"))[:, ::-1][:, ::-1],
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "buffer": lambda path: io.BytesIO(path.read_bytes()),
    "file": lambda path: path.open("rb"),
    "temporary file": open_temporary_file,
}


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_may_come_in_any_form(models: dict[str, Any], picture: Path, kind: str) -> None:
    image = PICTURES[kind](picture)
    with image if isinstance(image, io.IOBase | Image.Image) or kind == "temporary file" else nullcontext():
        (expected,), *copies = models["scenes"].describe([str(picture), image, image])
    for (caption,) in copies:
        assert caption.text == expected.text and caption.log_probability == pytest.approx(expected.log_probability)


def test_an_array_of_pictures_is_captioned(models: dict[str, Any], picture: Path) -> None:
    batch = np.stack([np.asarray(Image.open(picture).convert("RGB"))] * 3)
    assert len(models["scenes"].caption(batch)) == len(models["scenes"].caption(Column(list(batch)))) == 3


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: None, "not None"),
        (lambda: ["a.png", None], "number 2 is None"),
        (lambda: (name for name in ["a.png"]), "not a generator"),
        (lambda: [iter(["a.png"])], "number 1 is a list_iterator"),
        (lambda: [torch.zeros(3, 64, 64, dtype=torch.uint8)], "number 1 is a Tensor"),
        (lambda: [np.zeros((64, 64, 3))], r"number 1 is an array of float64 \(64 × 64 × 3\)"),
        (lambda: [np.zeros((3, 64, 64), np.uint8)], r"an array of uint8 \(3 × 64 × 64\)"),
        (lambda: [np.zeros((64, 64), np.uint8)], r"an array of uint8 \(64 × 64\)"),
        (lambda: np.zeros((64, 64, 3), np.uint8), r"write \[image\] for a single one"),
        (lambda: SECRET.encode() * 1000, r"write \[image\] for a single one"),
        (lambda: [io.StringIO(SECRET)], "number 1 is a StringIO.* opened with mode 'rb'"),
        (lambda: [Talkative()], "number 1 is a Talkative"),
        (lambda: [SECRET.encode() * 1000], "image 1 is not an image of a known format"),
        (lambda: ["a" * 100 + SECRET * 100_000], "is too long for a path or a URL"),
        (lambda: [io.BytesIO()], "image 1 is empty"),
    ],
)
def test_unfit_lists_of_pictures_are_refused(models: dict[str, Any], make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        models["scenes"].caption(make())
    assert SECRET not in str(error.value) and len(str(error.value)) < 250


def test_load_takes_paths_and_lists_of_paths(shown_runs: Path) -> None:
    run = shown_runs / "runs" / "fixed"
    expected = seqtool.load(str(run), device="cpu").translate(SENTENCES)
    for path in (run, np.str_(run), (run,), np.array([str(run)]), Column([run])):
        assert seqtool.load(path, device="cpu").translate(SENTENCES) == expected
    for unfit in (None, 3, b"runs/a", {SECRET: 1}, iter([run]), Talkative(), [run, None], [Talkative()], [], ""):
        with pytest.raises(InputError, match=r"^seqtool\.load (takes|needs) a ") as error:
            seqtool.load(unfit)  # type: ignore[arg-type]
        assert SECRET not in str(error.value) and len(str(error.value)) < 150


def test_dir_and_repr_are_informative(models: dict[str, Any], shown_runs: Path) -> None:
    assert dir(seqtool) == ["Run", "__version__", "load", "train"]
    checkpoint = re.escape(f"{shown_runs}/runs/attend/checkpoints/step-")
    expected = rf"Translator\({checkpoint}\d+: Bahdanau, 200 source and 200 target entries, cpu\)"
    assert re.fullmatch(expected, repr(models["attend"]))
    assert "ShowAttendTell, " in repr(models["scenes"]) and repr(models["text"]).startswith("Generator(")


def process_state() -> dict[str, Any]:
    """Return the state of the whole process, without Python's random numbers, which the checks of shapes draw from."""
    loggers = [logging.getLogger(name) for name in (None, "seqtool", "matplotlib", "PIL")]
    return {
        "threads": torch.get_num_threads(),
        "torch's random numbers": torch.get_rng_state().tolist(),
        "numpy's random numbers": str(np.random.get_state()),
        "types": (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()),
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "logging": [(logger.level, list(logger.handlers)) for logger in loggers],
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "numpy": (np.geterr(), np.get_printoptions()["precision"]),
        "directory": os.getcwd(),  # noqa: PTH109
    }


@pytest.mark.parametrize("prefix", [None, 5, math.nan, b"El", ["▁El", 5], [None]])
def test_invalid_prefixes_are_refused(models: dict[str, Any], prefix: Any) -> None:
    with pytest.raises(InputError, match=r"^Prefix 2 is .*, not a text or a list of pieces"):
        models["attend"].hypotheses(SENTENCES, prefixes=["El", prefix])


@pytest.mark.parametrize("name", ["attend", "scenes", "text"])
def test_the_state_of_the_process_is_left_unchanged(shown_runs: Path, picture: Path, name: str) -> None:
    thread_counts = []
    torch.set_num_threads(2)
    try:
        before = process_state()
        model: Any = seqtool.load(shown_runs / "runs" / name, device="cpu", threads=3, max_length=4)
        assert process_state() == before
        model.models[0].register_forward_pre_hook(lambda *_: thread_counts.append(torch.get_num_threads()))
        step = model.model.step
        model.model.step = lambda *arguments: thread_counts.append(torch.get_num_threads()) or step(*arguments)
        {"attend": lambda: model.translate(SENTENCES), "scenes": lambda: model.caption([picture])}.get(
            name, lambda: model.generate(["the "])
        )()
        assert process_state() == before
    finally:
        torch.set_num_threads(1)
    assert thread_counts and set(thread_counts) == {3}


def test_memory_settings_of_the_process_are_left_unchanged(shown_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands tell torch through this variable how to take memory, and glibc at the same time."""
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    seqtool.load(shown_runs / "runs" / "fixed", device="cpu")
    assert "THP_MEM_ALLOC_ENABLE" not in os.environ


SMALL = {
    "device": "cpu",
    "data": {"train": 300, "valid": 5, "test": 5, "processes": 1, "vocabulary": {"size": 200}},
    "model": dict.fromkeys(("embedding", "encoder_hidden", "decoder_hidden", "alignment", "maxout"), 8),
    "train": {"steps": 4, "validate_every": 2, "log_every": 1, "minutes": None, "tensorboard": False},
}


PLAIN = [f"{name}={ {None: 'null', False: 'false'}.get(value, value) }" for name, value in leaves(SMALL)]


def weights(run: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(run.glob("checkpoints/*/model.safetensors")))


def test_a_loaded_model_is_not_copied(models: dict[str, Any]) -> None:
    for model in models.values():
        for function in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"^A loaded model cannot be pickled or copied: call seqtool\.load "):
                function(model)


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the command has trained runs/command."""
    directory = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert cli.run(["train", *PLAIN, "run=command"], CONFIGS) == 0
    return directory


def test_training_from_python_is_training_by_the_command(trained_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are equal to the bit, also of a second run of the same process; nothing global is changed."""
    monkeypatch.chdir(trained_runs)
    torch.manual_seed(5)
    before = process_state()
    first = seqtool.train("data=toy", run="first", **SMALL)  # type: ignore[arg-type]
    assert process_state() == before and not GlobalHydra.instance().is_initialized()
    second = seqtool.train(*PLAIN, run="second")
    assert len({weights(run.path) for run in (first, second, seqtool.Run("runs/command"))}) == 1
    assert weights(first.path) and repr(first) == "Run('runs/first')"
    assert [record["step"] for record in first.metrics] == [1, 2, 2, 3, 4, 4]
    assert first.metrics[-1]["valid_loss"] == seqtool.Run(trained_runs / "runs" / "command").metrics[-1]["valid_loss"]
    assert len(first.load(device="cpu").translate(["I have a cat."])) == 1  # type: ignore[union-attr]
    resumed = seqtool.train(run="first", train={"resume": True, "steps": 5})
    assert resumed.metrics[-1]["step"] == 5 and resumed.path == first.path


@pytest.mark.parametrize(
    ("settings", "named", "reason"),
    [
        ([], {"train": {"step": 3}}, "Unknown setting 'train.step'; did you mean 'train.steps'?"),
        (["model=bahdano"], {}, "Unknown model 'bahdano'"),
        ([], {"train": {"steps": -1}}, "train.steps"),
        ([], {"run": {"a", "b"}}, "Setting 'run' is a set: use text, a number, a path or a list of them."),
        (["--multirun", "seed=1,2"], {}, "trains one run: leave out --multirun"),
        (["steps"], {}, "'steps' is not a setting: write key=value."),
    ],
)
def test_training_from_python_refuses_what_the_command_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], named: dict[str, Any], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = process_state()
    with pytest.raises(InputError, match=re.escape(reason)):
        seqtool.train(*settings, **named)
    assert process_state() == before and not any(tmp_path.iterdir())
    with pytest.raises(InputError, match="is not the directory of a run"):
        seqtool.Run(tmp_path)


def test_interrupting_training_leaves_a_run_to_resume(trained_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained_runs)
    updated = MetricsLog.updated

    def interrupt(self: MetricsLog, progress: Any, rate: float) -> None:
        updated(self, progress, rate)
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "updated", interrupt)
        with pytest.raises(KeyboardInterrupt):
            seqtool.train(run="stopped", **SMALL)  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGINT) is before
    stopped = seqtool.train(run="stopped", train={"resume": True})
    last = [max(Path(run).glob("checkpoints/*/model.safetensors")) for run in (stopped.path, "runs/command")]
    assert last[0].read_bytes() == last[1].read_bytes()


def test_plots_are_figures(models: dict[str, Any], picture: Path, tmp_path: Path) -> None:
    translation = models["attend"].hypotheses(SENTENCES, attention=True)[0][0]
    caption = models["scenes"].describe([picture])[0][0]
    for prediction in (translation, caption):
        prediction.plot(tmp_path / "command.png", end=True)
        with matplotlib.style.context("dark_background"):
            figure = prediction.plot(end=True)
            png = figure._repr_png_()  # what a notebook shows
            figure.savefig(tmp_path / "figure.png")
        assert png.startswith(b"\x89PNG") and "matplotlib.pyplot" not in repr(type(figure))
        pictures = [np.asarray(Image.open(tmp_path / f"{name}.png")) for name in ("command", "figure")]
        assert np.array_equal(*pictures)
    for prediction in (models["attend"].hypotheses(SENTENCES)[0][0], models["fixed"].hypotheses(SENTENCES)[0][0]):
        with pytest.raises(InputError, match=r"cannot be plotted: .* attention"):
            prediction.plot()


def test_alignments_are_drawn_into_given_axes(models: dict[str, Any]) -> None:
    translation = models["attend"].hypotheses(SENTENCES, attention=True)[0][0]
    figure, axes = plt.subplots()
    try:
        assert translation.plot(axes=axes) is figure
        assert axes.images[0].get_array().shape == translation.word_attention.shape
    finally:
        plt.close(figure)


def test_runs_are_plotted_beside_each_other(trained_runs: Path, tmp_path: Path) -> None:
    run = seqtool.Run(trained_runs / "runs" / "command")
    other = seqtool.Run(shutil.copytree(run.path, tmp_path / "other"))
    figure = run.plot(beside=[other])
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert labels == [
        f"{path}: {kind} loss" for path, kind in product((run.path, other.path), ("validation", "training"))
    ]


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_the_stored_outputs_are_small_and_without_errors() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["pictures", "words"]
    assert sum(notebook.stat().st_size for notebook in NOTEBOOKS) < 1_500_000
    for notebook in NOTEBOOKS:
        outputs = [
            output for cell in json.loads(notebook.read_text("utf-8"))["cells"] for output in cell.get("outputs", ())
        ]
        assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_cells_of_the_notebooks_run(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells run with few steps and little data."""
    if not (Path(seqtool.__file__).parent / "builtin").is_dir():
        pytest.skip("the built-in models are not in this checkout")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plots, "DPI", 30)
    train = seqtool.train
    few: dict[str, Any] = {"train": 20, "valid": 2, "test": 2, "vocabulary": {"minimum_count": 1}, "processes": 1}
    if notebook.stem == "words":
        few |= {"train": 300, "vocabulary": {"size": 200}}
    little = {"data": few, "schedule": {"warmup": 0}, "device": "cpu", "validation": {"max_length": 5}}
    monkeypatch.setattr(seqtool, "train", lambda **named: train(**{**named, **little}))
    variables: dict[str, Any] = {}
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(re.sub(r"^steps = \d+", "steps = 2", "".join(cell["source"])), variables)
    plt.close("all")
    run = variables["dot" if notebook.stem == "words" else "run"]
    assert run.metrics[-1]["step"] == 2
