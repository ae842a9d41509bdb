"""What is shown while a model trains, what a language model expects next, and pictures of a few test sentences."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import seqtool
from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory

COMMON = ["data.processes=1", "device=cpu", "threads=1", "train.minutes=null", "train.show=2"]
PAIRS = ["data.train=300", "data.valid=6", "data.test=60", "data.vocabulary.size=200", "model.embedding=8"]
SIZES = [f"model.{one}=8" for one in ("encoder_hidden", "decoder_hidden", "alignment", "maxout")]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with contextlib.chdir(tmp_path_factory.mktemp("place")):
        yield Path.cwd()


def kept(name: str) -> list[Any]:
    return [json.loads(line) for line in Path(f"runs/{name}/samples.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def pairs(place: Path) -> str:
    assert run("train", *COMMON, *PAIRS, *SIZES, "run=pairs", "train.steps=4", "train.validate_every=2") == 0
    return "pairs"


def test_translations_are_shown_and_kept(pairs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same two sentences each time; a resumed run shows them again."""
    found = kept(pairs)
    assert [one["step"] for one in found] == [2, 4]
    (cache,) = Path("cache").glob("toy-*/")
    sources, references = ((cache / f"valid.{side}.txt").read_text().splitlines()[:2] for side in ("source", "target"))
    for one in found:
        assert [sample["source"] for sample in one["samples"]] == sources
        assert [sample["reference"] for sample in one["samples"]] == references
        assert all(isinstance(sample["hypothesis"], str) for sample in one["samples"])
    assert run("train", f"run={pairs}", "train.resume=true", "train.steps=6") == 0
    assert f"  reference   {references[1]}" in capsys.readouterr().out
    assert kept(pairs)[:2] == found and [one["step"] for one in kept(pairs)] == [2, 4, 6]


def test_texts_are_shown_and_kept(place: Path) -> None:
    Path("text.txt").write_text("the cat sees the dog\n" * 80)
    text = ["data=text", "data.train=text.txt", "train.batch_size=4", "train.bptt=10", "optim.lr=0.02"]
    sizes = ["model=language_model", "model.embedding=8", "model.hidden=24", "model.dropout=0"]
    assert run("train", *COMMON, *text, *sizes, "run=text", "train.steps=150", "train.validate_every=75") == 0
    first, last = kept("text")
    assert all(len(sample["text"]) > 150 for one in (first, last) for sample in one["samples"])
    known = {"the", "cat", "sees", "dog"}

    def words(one: Any) -> float:
        found = [word for sample in one["samples"] for word in sample["text"].split()]
        return sum(word in known for word in found) / len(found)

    assert words(last) > 0.5 and len(last["samples"]) == 2


def test_captions_are_shown_and_kept(place: Path) -> None:
    Path("photos").mkdir()
    for i in range(8):
        Image.new("RGB", (32, 32), (30 * i, 0, 0)).save(f"photos/{i}.png")
    lines = (json.dumps({"file": f"{i}.png", "caption": "all is red"}) for i in range(8))
    Path("photos/captions.jsonl").write_text("\n".join(lines) + "\n")
    photos = ["data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "data.valid_share=0.5"]
    sizes = ["model=show_tell", "model.hidden=8", "model.embedding=8", "model.encoder.size=32"]
    more = ["data.vocabulary.minimum_count=1", "run=photos", "train.steps=1"]
    assert run("train", *COMMON, *photos, *sizes, *more) == 0
    (shown,) = kept("photos")
    assert len(shown["samples"]) == 2
    for sample in shown["samples"]:
        assert sample["image"].endswith(".png") and sample["reference"] == "all is red" and "hypothesis" in sample


def test_the_likeliest_symbols(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For each token its probability, and what the model would rather have had."""
    Path("new.txt").write_text("the cat\nthe dog\n")
    common = ["eval", "checkpoint=runs/text", "text=new.txt", "bootstrap=2", "device=cpu"]
    capsys.readouterr()
    assert run(*common, "format=jsonl", "likeliest=3") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == ["the cat\n", "the dog\n"]
    for line in lines:
        assert "".join(one["token"] for one in line["predicted"]).replace("▁", " ") == line["text"]
        assert line["nats"] == pytest.approx(-sum(np.log(one["probability"]) for one in line["predicted"]), rel=1e-5)
        for one in line["predicted"]:
            probabilities = [p for _, p in one["likeliest"]]
            assert len(probabilities) == 3 and probabilities == sorted(probabilities, reverse=True)
            assert one["probability"] <= probabilities[0] + 1e-6 and sum(probabilities) <= 1 + 1e-6
            assert dict(one["likeliest"]).get(one["token"], one["probability"]) == pytest.approx(one["probability"])
            assert 0 <= one["entropy"] <= math.log(len(seqtool.load("runs/text").target_vocabulary))
    assert run(*common, "likeliest=3") == 2
    assert "likeliest= needs format=jsonl or report=FILE.html." in capsys.readouterr().err


def test_pictures_of_a_few_sentences(pairs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Drawn by the seed from test sentences of 10 to 20 words."""
    common = ["eval", f"checkpoint=runs/{pairs}", "bootstrap=2", "beam=1", "device=cpu", "max_length=20"]
    for place in ("one", "other"):
        assert run(*common, f"plot={place}", "samples=3") == 0
    (cache,) = Path("cache").glob("toy-*/")
    sources = (cache / "test.source.txt").read_text().splitlines()
    names = sorted(file.name for file in Path("one").glob("alignment-*.png"))
    assert len(names) == 3 and names == sorted(file.name for file in Path("other").glob("alignment-*.png"))
    assert all(10 <= len(sources[int(name[10:14]) - 1].split()) <= 20 for name in names)
    Path("short.en").write_text("I see the dog.\n")
    capsys.readouterr()
    assert run(*common, "sources=short.en", "references=short.en", "plot=none", "samples=3") == 0
    assert "samples=3: no source has 10 to 20 words, so none is drawn." in capsys.readouterr().err
    assert run(*common, "samples=3") == 2
    assert "samples= needs checkpoint=PATH and plot=DIR." in capsys.readouterr().err
