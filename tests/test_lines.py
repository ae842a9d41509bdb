"""Tests of `data.lines`: each line is a sequence of its own, from a fresh state to an end that the model predicts."""

import json
import math
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import seqtool
from seqtool.cli import main as cli
from seqtool.data.corpora.plain_text import BUILT_IN, PlainText
from seqtool.data.preparation import prepare_text
from seqtool.errors import InputError
from seqtool.models.tokens import BOS, EOS, PAD
from seqtool.runtime.configs import defaults
from seqtool.runtime.files import config_directory
from seqtool.settings import escape

HALVES = ["".join(letters) for length in (2, 3) for letters in product("ab", repeat=length)]
PALINDROMES = [*(half + half[::-1] for half in HALVES), *(half + half[-2::-1] for half in HALVES)]  # 3 to 6 letters
MODELS = {
    "lstm": ["model=language_model", "model.embedding=8", "model.hidden=32", "model.layers=1"],
    "transformer": ["model=transformer_language_model", "model.width=16", "model.layers=1", "model.heads=2"],
}
SETTINGS = [
    *("data=text", "data.train=train.txt", "data.valid=valid.txt", "data.lines=true", "data.processes=1"),
    *("model.dropout=0", "optim.lr=0.01", "train.batch_size=16", "train.minutes=null", "device=cpu", "threads=1"),
]


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with palindromes and two runs: `lstm`, which has learnt them, and `transformer`, whose windows
    of four letters are shorter than most of them.
    """
    workspace = tmp_path_factory.mktemp("lines")
    (workspace / "train.txt").write_text("".join(f"{line}\n" for line in PALINDROMES))
    (workspace / "valid.txt").write_text("abba\nb\n\nabaab\r\nbaaaaaab")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)
        assert run("train", *SETTINGS, *MODELS["lstm"], "train.steps=200", "train.validate_every=100", "run=lstm") == 0
        windows = ["model.context=4", "train.bptt=2", "train.steps=20", "train.show=2", "run=transformer"]
        assert run("train", *SETTINGS, *MODELS["transformer"], *windows) == 0
    return workspace


@pytest.fixture(autouse=True)
def in_workspace(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)


def make_corpus(**settings: Any) -> PlainText:
    return PlainText(**{"train": None, "valid": None, "test": None, "valid_share": 0.5, **settings})


def test_most_samples_are_whole_palindromes() -> None:
    """Of samples that only begin with the right letters and end at the right length, fewer than a third would be."""
    samples = seqtool.load("runs/lstm/last", n=100, max_length=30, device="cpu").samples([""])[0]
    assert all(sample.ended for sample in samples)
    assert sum(sample.text in PALINDROMES for sample in samples) > 50
    (text,) = seqtool.load("runs/lstm/last", max_length=30, temperature=0.3, device="cpu").generate(["abb"])
    assert "abb" + text in PALINDROMES


@pytest.mark.parametrize("name", MODELS)
def test_the_validation_loss_is_the_sum_of_the_scores_of_lines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line's end is scored. `eval` of the split and of its file agree, and count the end as a character."""
    lines = ["abba", "b", "abaab", "baaaaaab"]
    records = [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "valid_loss" in record][-1]
    predictions = seqtool.load(f"runs/{name}/last", device="cpu").forced(None, lines)
    assert all(prediction.ended for prediction in predictions)
    nats = [-prediction.log_probability for prediction in predictions]
    tokens = sum(len(line) + 1 for line in lines)
    assert sum(len(prediction.log_probabilities) for prediction in predictions) == tokens
    assert last["valid_loss"] == pytest.approx(sum(nats) / tokens, rel=1e-5)
    assert last["valid_bits"] == pytest.approx(last["valid_loss"] / math.log(2))
    capsys.readouterr()
    evaluation = ["eval", f"checkpoint=runs/{name}/last", "device=cpu", "bootstrap=0"]
    for text in ([], ["text=valid.txt"]):
        assert run(*evaluation, *text, "format=json") == 0
        record = json.loads(capsys.readouterr().out)
        assert record["loss"] == pytest.approx(last["valid_loss"], rel=1e-5)
        assert record["tokens"] == record["characters"] == tokens
    Path("blank.txt").write_text("\n\n")
    assert run(*evaluation, "text=blank.txt") == 2
    assert capsys.readouterr().err == "seqtool: blank.txt has no text that could be scored.\n"
    assert run(*evaluation, "window=9") == 2
    assert "window= is for a text that is read as one stream" in capsys.readouterr().err
    assert run(*evaluation, "format=jsonl", "likeliest=9") == 0
    by_line = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["text"] for record in by_line] == [f"{line}\n" for line in lines]
    assert [record["nats"] for record in by_line] == pytest.approx(nats, rel=1e-5)
    ending = by_line[0]["predicted"][-1]
    assert ending["token"] == "<end>" and dict(ending["likeliest"])["<end>"] == ending["probability"]
    if name == "lstm":
        assert run(*evaluation) == 0
        assert "Text: the split valid, line by line" in capsys.readouterr().out


@pytest.mark.parametrize("name", MODELS)
def test_batch_mates_change_nothing(name: str) -> None:
    """A line's −log p in a batch with longer lines is that of the line alone, from BOS to EOS."""
    generator = seqtool.load(f"runs/{name}", device="cpu")
    split = prepare_text(OmegaConf.create(generator.config["data"])).split("train")
    assert split.stream_count is None and len(split) == len(PALINDROMES)
    rows = np.arange(0, len(split), 5)
    batch = split.collate(rows)
    assert batch.source is None and batch.continues is None and batch.tokens == split.count_labels(rows)
    assert len(batch.target) == split.count_targets(rows)
    with torch.no_grad():
        nll = generator.model.loss(generator.model(None, batch.inputs).features, batch.labels, 0.0).nll
    for i, row in enumerate(rows):
        ids = [token for token in batch.target[i].tolist() if token != PAD]
        assert ids[0] == BOS and ids[-1] == EOS and generator.target_vocabulary.decode(ids) == PALINDROMES[row]
        alone, _ = generator.predict_tokens(ids[1:], lambda _: None, likeliest=0)
        np.testing.assert_allclose(nll[i, : len(alone)], alone, rtol=1e-4, atol=1e-5)
        assert not nll[i, len(alone) :].any()


def test_a_generated_line_has_the_log_probability_of_scoring(capsys: pytest.CaptureFixture[str]) -> None:
    """The end is included if there is one. A text may also end at its maximum length or before a stop text."""
    generator = seqtool.load("runs/transformer", n=30, max_length=6, stop=["bbb"], device="cpu")
    samples = generator.samples(["ab"])[0]
    scores = generator.forced(None, ["ab" + sample.text for sample in samples])
    ends = {}
    for sample, score in zip(samples, scores, strict=True):
        kind = "stop" if "bbb" in "".join(sample.pieces) else "end" if sample.ended else "length"
        ends[kind] = sample
        if kind != "stop":
            log_p = score.log_probabilities[2:][: len(sample.pieces) + sample.ended]
            assert sample.log_probability == pytest.approx(sum(log_p), rel=1e-4, abs=1e-5)
            assert sample.ended or len(sample.pieces) == 6
    assert ends.keys() == {"stop", "end", "length"} and ends["stop"].ended
    capsys.readouterr()
    assert run("generate", "checkpoint=runs/lstm", "n=3", "device=cpu") == 0
    texts = capsys.readouterr().out.split("-" * 20 + "\n")
    assert len(texts) == 3 and all(1 < len(text) < 20 and text.count("\n") == 1 for text in texts)
    shown = Path("runs/transformer/samples.jsonl").read_text().splitlines()
    assert any(len(sample["text"]) < 50 for line in shown for sample in json.loads(line)["samples"])


def test_lines_are_whole_and_have_no_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty lines are left out. Train and valid are divided between two lines."""
    (tmp_path / "a.txt").write_bytes(b"one\r\n\ntwo \nthree\n")
    file = str(tmp_path / "a.txt")
    for share, count in ((0.1, 2), (0.5, 1), (0.7, 1)):
        corpus = make_corpus(train=file, valid_share=share, lines=True)
        parts = [list(corpus.lines(split)) for split in corpus.splits()]
        assert [*chain(*parts)] == ["one", "two ", "three"] and len(parts[0]) == count
    (tmp_path / "b.txt").write_text("one\n")
    with pytest.raises(InputError, match=r"^data\.valid_share=0\.5 of 3 characters leaves nothing to train on\.$"):
        list(make_corpus(train=str(tmp_path / "b.txt"), lines=True).lines("train"))
    monkeypatch.setitem(BUILT_IN, "train", 20)
    built_in = [next(make_corpus(lines=lines).lines("train")) for lines in (False, True)]
    assert built_in[0] == built_in[1] + "\n"


def test_a_repeated_line_is_counted_without_empty_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("\n\nsame\n\nsame\n" + "".join(f"other {n}\n" for n in range(20)))
    (tmp_path / "b.txt").write_text("unseen\n")
    data = {**defaults("data/text"), "train": f"{tmp_path}/a.txt", "valid": f"{tmp_path}/b.txt", "lines": True}
    prepare_text(OmegaConf.create({**data, "cache": str(tmp_path / "cache"), "processes": 1}))
    assert "such as nonempty line 2" in caplog.text


def test_nothing_changes_without_it(tmp_path: Path) -> None:
    """Data without the setting, which older runs lack, have the fingerprint and the cache of lines=false."""
    digests: list[dict[str, Any]] = []
    for settings in ({}, {"lines": False}, {"lines": True}):
        digests.append(make_corpus(train="train.txt", **settings).fingerprint(str))
    assert digests[0] == digests[1] == {"train": ["train.txt"], "valid": ["train.txt"], "valid_share": 0.5}
    assert digests[2] == {**digests[0], "lines": True}
    data = {**defaults("data/text"), "train": escape("train.txt"), "cache": str(tmp_path), "processes": 1}
    directories = [prepare_text(OmegaConf.create(data | {"lines": lines})).directory for lines in (False, True)]
    del data["lines"]
    assert prepare_text(OmegaConf.create(data)).directory == directories[0] != directories[1]
    older = seqtool.load("builtin/text", device="cpu")
    assert "lines" not in older.config["data"] and not older.forced(None, ["The"])[0].ended


def test_a_model_reads_other_data_as_it_was_trained(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    evaluation = ["eval", "checkpoint=runs/lstm", "data=text", "data.train=valid.txt", "data.valid_share=0.5"]
    assert run(*evaluation, "split=train", "format=json", "device=cpu", "bootstrap=0") == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == len("abba") + len("b") + 2
    assert run("train", "run=lstm", "train.resume=true", "data.lines=false", "train.steps=500") == 2
    assert "data.lines (true, now false)" in capsys.readouterr().err.lower()
