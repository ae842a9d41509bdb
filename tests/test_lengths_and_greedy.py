"""Tests of the length limits of sources and outputs, and of decoding at temperature 0."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import seqtool
from seqtool.cli import main as cli
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory

LINES = ["a b c d", "b " * 40 + "a", " ".join("abcd" * 15), "c " * 220]
MACHINE = ["device=cpu", "threads=1"]
SMALL = ["data.processes=1", "train.minutes=null", "train.steps=2", *MACHINE]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with two word translators, one of which reads at most 50 tokens, and two language models."""
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        Path("lines").write_text("".join(f"{line}\n" for line in LINES))
        Path("pairs").write_text("".join(f"{line}\t{line[::-1]}\n" for line in LINES))
        Path("train").write_text("a b c d\td c b a\n" * 20)
        Path("text").write_text("".join(f"{i} the {chr(0x4E00 + i)}\n" for i in range(200)))
        data = ["data=parallel", "data.train=train", "data.valid=pairs", "data.vocabulary.kind=word"]
        sizes = [f"model.{size}=8" for size in ("embedding", "encoder_hidden", "decoder_hidden", "alignment", "maxout")]
        lengths = ["validation.max_length=4", "validation.max_source_length=60", "train.show=4", "run=pairs"]
        assert run("train", *data, *SMALL, *sizes, *lengths) == 0
        positions = ["model.positions=learnt", "model.longest=50", "model.feed_forward=8", "run=positions"]
        layers = ["model=transformer", "model.width=8", "model.heads=1", "model.encoder_layers=1"]
        data[2] = "data.valid=train"
        assert run("train", *data, *SMALL, *layers, "model.decoder_layers=1", *positions) == 0
        for kind in ("char", "word"):
            text = ["data=text", "data.train=text", f"data.vocabulary.kind={kind}", "model=language_model"]
            sizes = ["model.embedding=8", "model.hidden=8", "train.batch_size=2", f"run={kind}"]
            assert run("train", *text, *SMALL, *sizes) == 0
        yield Path.cwd()


@pytest.mark.parametrize(
    ("name", "settings", "limit", "warning"),
    [
        ("pairs", ["max_length=300"], 300, ""),
        ("pairs", ["max_length=5"], 200, "only the first 199 are translated (max_source_length=200)."),
        ("pairs", ["max_length=5", "max_source_length=60"], 60, "the first 59 are translated (max_source_length=60)."),
        ("pairs", ["max_length=5", "max_source_length=100"], 100, "the first 99 are translated (max_source_length="),
        ("pairs", ["max_length=90", "max_source_length=6"], 6, "the first 5 are translated (max_source_length=6)."),
        ("positions", ["max_length=5", "max_source_length=100"], 50, "(the model's 50 learnt positions)."),
        ("positions", ["max_length=100", "max_source_length=9"], 9, "(max_source_length=9)."),
        ("positions", ["max_length=100"], 50, "(the model's 50 learnt positions)."),
    ],
)
def test_sources_and_outputs_have_separate_length_limits(
    workspace: Path, name: str, settings: list[str], limit: int, warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limits apply in translate, eval and notebooks, and a warning names the setting that cut a source."""
    token_counts = [min(len(line.split()), limit - 1) for line in LINES]
    common = [f"checkpoint=runs/{name}", *settings, "beam=2", *MACHINE]
    capsys.readouterr()
    assert run("translate", *common, "input=lines", "format=jsonl", "weights=true") == 0
    captured = capsys.readouterr()
    best = [json.loads(line)["translations"][0] for line in captured.out.splitlines()]
    assert [len(translation["source_tokens"]) - 1 for translation in best] == token_counts
    values = dict(setting.split("=") for setting in settings)
    assert all(len(translation["tokens"]) <= int(values["max_length"]) for translation in best)
    assert warning in captured.err if warning else "are translated" not in captured.err
    texts = [translation["text"] for translation in best]
    if name == "pairs":
        assert run("eval", *common, "sources=lines", "references=lines", "output=out", "bootstrap=2", "ter=false") == 0
        assert warning in capsys.readouterr().err
        assert Path("out").read_text().splitlines() == texts
    limits = {key: int(value) for key, value in values.items()}
    model: Any = seqtool.load(f"runs/{name}", device="cpu", beam=2, **limits)
    assert model.translate(LINES) == texts


def test_validation_obeys_max_source_length(workspace: Path) -> None:
    samples = [json.loads(line) for line in Path("runs/pairs/samples.jsonl").read_text().splitlines()][-1]["samples"]
    model: Any = seqtool.load("runs/pairs", device="cpu", beam=1, max_length=4, max_source_length=60)
    assert [sample["hypothesis"] for sample in samples] == model.translate(LINES)
    assert model.hypotheses(LINES, attention=True)[2][0].attention.shape[1] == 59


@pytest.mark.parametrize("value", ["1", "99999"])
def test_impossible_source_lengths_are_refused(workspace: Path, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["translate", "checkpoint=runs/pairs", "input=lines", f"max_source_length={value}"],
        ["train", "data=parallel", "data.train=train", "data.valid=train", f"validation.max_source_length={value}"],
    ):
        assert run(*arguments) == 2
        assert "max_source_length" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["char", "word"])
@pytest.mark.parametrize(("n", "settings"), [(1, []), (3, ["top_k=5"]), (1, ["top_p=0.9"])])
def test_generation_at_temperature_0_is_greedy(
    workspace: Path, name: str, n: int, settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The most probable symbol is taken, whatever the seed, from small and large vocabularies."""
    common = ["generate", f"checkpoint=runs/{name}", "prompt=the ", f"n={n}", "max_length=12", "format=jsonl", *MACHINE]
    capsys.readouterr()
    assert run(*common, "top_k=1") == 0
    greedy = json.loads(capsys.readouterr().out)["texts"]
    for seed in (1, 2):
        assert run(*common, "temperature=0", f"seed={seed}", *settings) == 0
        texts = json.loads(capsys.readouterr().out)["texts"]
        assert [sample["tokens"] for sample in texts] == [greedy[0]["tokens"]] * n
        assert texts[0]["log_probability"] == pytest.approx(greedy[0]["log_probability"], abs=1e-4)


def test_sampled_translations_at_temperature_0_are_greedy(workspace: Path) -> None:
    greedy: Any = seqtool.load("runs/pairs", device="cpu", sample=True, top_k=1, max_length=9)
    sampled: Any = seqtool.load("runs/pairs", device="cpu", sample=True, temperature=0, n_best=2, seed=5, max_length=9)
    texts = greedy.translate(LINES)
    assert [[h.text for h in n_best] for n_best in sampled.hypotheses(LINES)] == [[text, text] for text in texts]


@pytest.mark.parametrize("value", [-1, 1e-9])
def test_impossible_temperatures_are_refused(workspace: Path, value: float) -> None:
    for name in ("pairs", "char"):
        with pytest.raises(InputError, match="temperature must be"):
            seqtool.load(f"runs/{name}", device="cpu", temperature=value)
