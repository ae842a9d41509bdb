"""Tests of samples shown in training, of the most probable symbols of a text, and of plots of a few test sentences."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

import seqtool
from seqtool.cli import main as cli
from seqtool.cli import report as cli_report
from seqtool.cli.arguments import load
from seqtool.runtime.files import config_directory
from seqtool.view import plots

COMMON = ["data.processes=1", "device=cpu", "threads=1", "train.minutes=null", "train.show=2"]
PAIRS = ["data.train=300", "data.valid=6", "data.test=60", "data.vocabulary.size=200", "model.embedding=8"]
SIZES = [f"model.{size}=8" for size in ("encoder_hidden", "decoder_hidden", "alignment", "maxout")]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        yield Path.cwd()


def read_samples(name: str) -> list[Any]:
    return [json.loads(line) for line in Path(f"runs/{name}/samples.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def pairs(workspace: Path) -> str:
    assert run("train", *COMMON, *PAIRS, *SIZES, "run=pairs", "train.steps=4", "train.validate_every=2") == 0
    return "pairs"


def test_translations_are_shown_and_kept(pairs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same two sentences are translated each time, also after the run is resumed."""
    records = read_samples(pairs)
    assert [record["step"] for record in records] == [2, 4]
    (cache,) = Path("cache").glob("toy-*/")
    sources, references = ((cache / f"valid.{side}.txt").read_text().splitlines()[:2] for side in ("source", "target"))
    for record in records:
        assert [sample["source"] for sample in record["samples"]] == sources
        assert [sample["reference"] for sample in record["samples"]] == references
        assert all(isinstance(sample["hypothesis"], str) for sample in record["samples"])
    validation = load(Path("runs/pairs/config.yaml"))["validation"]
    settings = {name: validation[name] for name in ("beam", "max_length")}
    translator = seqtool.load("runs/pairs/last", device="cpu", **settings)
    for sample in records[1]["samples"]:  # the attention is that of `translate`, with <end> on both sides
        (best,) = translator.hypotheses([sample["source"]], attention=True)[0]
        looked = sample["attention"]
        assert best.text == sample["hypothesis"] and looked["source"] == [*best.source_pieces, "<end>"]
        assert looked["target"] == [*best.pieces, *["<end>"] * best.ended]
        np.testing.assert_allclose(np.array(looked["weights"]), best.whole_attention, atol=6e-4)
    capsys.readouterr()
    assert run("train", f"run={pairs}", "train.resume=true", "train.steps=6") == 0
    output = capsys.readouterr().out
    assert f"  reference   {references[1]}" in output and "attention" not in output
    assert read_samples(pairs)[:2] == records and [record["step"] for record in read_samples(pairs)] == [2, 4, 6]


def test_texts_are_shown_and_kept(workspace: Path) -> None:
    Path("text.txt").write_text("the cat sees the dog\n" * 80)
    text = ["data=text", "data.train=text.txt", "train.batch_size=4", "train.bptt=10", "optim.lr=0.02"]
    sizes = ["model=language_model", "model.embedding=8", "model.hidden=24", "model.dropout=0"]
    assert run("train", *COMMON, *text, *sizes, "run=text", "train.steps=150", "train.validate_every=75") == 0
    first, last = read_samples("text")
    assert all(len(sample["text"]) > 150 for record in (first, last) for sample in record["samples"])
    corpus_words = {"the", "cat", "sees", "dog"}

    def corpus_share(record: Any) -> float:
        words = [word for sample in record["samples"] for word in sample["text"].split()]
        return sum(word in corpus_words for word in words) / len(words)

    assert corpus_share(last) > 0.5 and len(last["samples"]) == 2


@pytest.fixture(scope="module")
def captioners(workspace: Path) -> tuple[str, str]:
    Path("photos").mkdir()
    for i in range(8):
        Image.new("RGB", (32, 32), (30 * i, 0, 0)).save(f"photos/{i}.png")
    lines = (json.dumps({"file": f"{i}.png", "caption": "all is red"}) for i in range(8))
    Path("photos/captions.jsonl").write_text("\n".join(lines) + "\n")
    photos = ["data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "data.valid_share=0.5"]
    sizes = ["model.hidden=8", "model.embedding=8", "model.encoder.size=32", "model.encoder.fit=crop"]
    settings = ["data.vocabulary.minimum_count=1", "train.steps=2", "train.validate_every=1", "validation.max_length=4"]
    for model in (models := ("show_tell", "show_attend_tell")):
        assert run("train", *COMMON, *photos, *sizes, *settings, f"model={model}", f"run={model}") == 0
    return models


def test_captions_are_shown_and_kept(captioners: tuple[str, str]) -> None:
    for model in captioners:
        records = read_samples(model)
        assert [len(record["samples"]) for record in records] == [2, 2]
        for sample in (sample for record in records for sample in record["samples"]):
            assert sample["image"].endswith(".png") and sample["reference"] == "all is red" and "hypothesis" in sample
            assert ("attention" in sample) == (model == "show_attend_tell")
    looked = records[-1]["samples"][0]["attention"]
    weights = np.array(looked["weights"])
    assert weights.shape == (len(looked["target"]), np.prod(looked["grid"])) and looked["fit"] == "crop"
    np.testing.assert_allclose(weights.sum(1), 1, atol=0.01)


def test_learning_is_drawn(
    pairs: str,
    captioners: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GIF has a picture for each validation, of a sentence as of an image, and none if there is no attention."""
    monkeypatch.setattr(plots, "learning_curves", lambda *_: Path("all").mkdir(exist_ok=True))  # tested elsewhere
    capsys.readouterr()
    assert run("inspect", "runs/show_attend_tell", "plot=all") == 0
    assert "Figures: all/learning_curves.png, all/learning.gif" in capsys.readouterr().out
    assert run("inspect", f"runs/{pairs}", "runs/show_tell", "plot=all") == 0
    assert "Figures: all/learning_curves.png, all/learning-pairs.gif\n" in capsys.readouterr().out
    for name, file in (("show_attend_tell", "learning.gif"), (pairs, "learning-pairs.gif")):
        with Image.open(Path("all") / file) as gif:
            frames = [np.asarray(frame.convert("L")) for frame in ImageSequence.Iterator(gif)]
        assert len(frames) == len(read_samples(name)) and not np.array_equal(frames[0], frames[-1])
    for name, count in (("show_tell", 0), ("show_attend_tell", 2)):
        section = cli_report.samples_of_run(name, Path("runs") / name)
        assert section is not None and len(section["pictures"]) == count
        assert all(url.startswith("data:image/") for url in section["pictures"].values())


def test_eval_gives_the_most_probable_symbols(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each token has its probability, the entropy, and the most probable symbols in its place."""
    Path("new.txt").write_text("the cat\nthe dog\n")
    common = ["eval", "checkpoint=runs/text", "text=new.txt", "bootstrap=2", "device=cpu"]
    capsys.readouterr()
    assert run(*common, "format=jsonl", "likeliest=3") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == ["the cat\n", "the dog\n"]
    for line in lines:
        predictions = line["predicted"]
        assert "".join(token["token"] for token in predictions).replace("▁", " ") == line["text"]
        assert line["nats"] == pytest.approx(-sum(np.log(token["probability"]) for token in predictions), rel=1e-5)
        for token in predictions:
            probability, probabilities = token["probability"], [p for _, p in token["likeliest"]]
            assert len(probabilities) == 3 and probabilities == sorted(probabilities, reverse=True)
            assert probability <= probabilities[0] + 1e-6 and sum(probabilities) <= 1 + 1e-6
            assert dict(token["likeliest"]).get(token["token"], probability) == pytest.approx(probability)
            assert 0 <= token["entropy"] <= math.log(len(seqtool.load("runs/text").target_vocabulary))
    assert run(*common, "likeliest=3") == 2
    assert "likeliest= needs format=jsonl or report=FILE.html." in capsys.readouterr().err


def test_alignments_of_a_few_sentences_are_drawn(pairs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The seed chooses among the test sentences of 10 to 20 words."""
    common = ["eval", f"checkpoint=runs/{pairs}", "bootstrap=2", "beam=1", "device=cpu", "max_length=20"]
    for directory in ("figures", "repeated"):
        assert run(*common, f"plot={directory}", "samples=3") == 0
    (cache,) = Path("cache").glob("toy-*/")
    sources = (cache / "test.source.txt").read_text().splitlines()
    names = sorted(file.name for file in Path("figures").glob("alignment-*.png"))
    assert len(names) == 3 and names == sorted(file.name for file in Path("repeated").glob("alignment-*.png"))
    assert all(10 <= len(sources[int(name[10:14]) - 1].split()) <= 20 for name in names)
    Path("short.en").write_text("I see the dog.\n")
    capsys.readouterr()
    assert run(*common, "sources=short.en", "references=short.en", "plot=none", "samples=3") == 0
    assert "samples=3: no source has 10 to 20 words, so none is drawn." in capsys.readouterr().err
    assert run(*common, "samples=3") == 2
    assert "samples= needs checkpoint=PATH and plot=DIR." in capsys.readouterr().err
