"""`score`: the probabilities of given pairs and texts."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqtool
from seqtool.cli import main as cli
from seqtool.errors import InputError
from seqtool.predict.generator import Generator
from seqtool.predict.translator import Translator
from seqtool.runtime.files import config_directory
from seqtool.view import plots

SOURCES = ["I have a big cat.", "", "She sees the house, but not the dogs."]
TARGETS = ["Tengo un gato grande.", "No.", ""]
TRANSFORMER = [
    *("model=transformer", "model.width=16", "model.heads=2", "model.feed_forward=16"),
    *("model.encoder_layers=2", "model.decoder_layers=2"),
]
COMMON = ["data.processes=1", "device=cpu", "threads=1", "train.minutes=null", "train.steps=2"]
PAIRS = ["sources=sources.txt", "references=targets.txt", "device=cpu", "threads=1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with three translators, one of them without attention, and a language model."""
    with contextlib.chdir(tmp_path_factory.mktemp("place")):
        pairs = [
            *COMMON,
            "data.train=200",
            "data.valid=5",
            "data.test=5",
            "data.vocabulary.size=200",
            "model.embedding=8",
        ]
        sizes = [f"model.{one}=8" for one in ("encoder_hidden", "decoder_hidden", "alignment", "maxout")]
        assert run("train", *pairs, *sizes, "run=attend") == 0
        assert run("train", *pairs, "model=sutskever", "model.hidden=8", "model.layers=1", "run=fixed") == 0
        assert run("train", *pairs[:-1], *TRANSFORMER, "run=transformer") == 0
        Path("text.txt").write_text("the cat sees the dog\n" * 50)
        text = ["data=text", "data.train=text.txt", "model=language_model", "model.embedding=8", "model.hidden=8"]
        assert run("train", *COMMON, *text, "run=text") == 0
        for name, lines in (("sources", SOURCES), ("targets", TARGETS)):
            Path(f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
        yield Path.cwd()


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


CHECKPOINTS = ["runs/attend", "runs/fixed", "runs/transformer", "runs/attend,runs/fixed,runs/transformer"]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_pairs_are_scored_as_forced_decoding_scores_them(
    place: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line by line and token by token, for one model and for an ensemble."""
    translator = seqtool.load(checkpoint.split(","), device="cpu")
    assert isinstance(translator, Translator)
    expected = translator.score(SOURCES, TARGETS)
    assert run("score", f"checkpoint={checkpoint}", *PAIRS) == 0
    captured = capsys.readouterr()
    assert [float(line) for line in captured.out.splitlines()] == pytest.approx(expected, abs=1e-4)
    assert run("score", f"checkpoint={checkpoint}", *PAIRS, "format=jsonl") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["source"] for one in records] == SOURCES
    for record, target, log_p in zip(records, TARGETS, expected, strict=True):
        assert record["tokens"] == [*translator.target_vocabulary.pieces(target), "<end>"]
        assert len(record["log_probabilities"]) == len(record["tokens"])
        assert sum(record["log_probabilities"]) == pytest.approx(log_p, abs=1e-4)
        assert record["log_probability"] == pytest.approx(log_p, abs=1e-6)
    tokens = sum(len(one["tokens"]) for one in records)
    nats = -sum(expected) / tokens
    assert "score: " in captured.err
    assert f"3 lines, {tokens} tokens: {nats:.4f} nats a token, perplexity {math.exp(nats):.2f}" in captured.err


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("beam", [1, 4])
def test_prefixes_are_continued_as_forced_decoding_allows(place: Path, checkpoint: str, beam: int) -> None:
    """The prefix stays, and the rest has the probability that forced decoding gives it after the prefix."""
    translator = seqtool.load(checkpoint.split(","), device="cpu", beam=beam, max_length=12)
    assert isinstance(translator, Translator)
    sources, prefixes = [SOURCES[0], SOURCES[2], SOURCES[0]], ["Tengo un", "", "La casa"]
    found = [one for (one,) in translator.hypotheses(sources, prefixes=prefixes)]
    forced = translator.forced(sources, [one.text for one in found])
    for prefix, one, given in zip(prefixes, found, forced, strict=True):
        pieces = translator.target_vocabulary.pieces(prefix)
        assert one.pieces[: len(pieces)] == pieces
        if one.ended and given.pieces == one.pieces:
            rest = (given.log_probabilities or [])[len(pieces) :]
            assert one.log_probability == pytest.approx(sum(rest), abs=1e-3)
        alone = translator.hypotheses([sources[0]], prefixes=[prefixes[0]])[0][0]
        assert alone.text == found[0].text


def test_what_a_model_does_not_know_of_a_prefix_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is written, whatever stands for other unknown words; and it is said."""
    Path("one.txt").write_text("I have a cat.\n")
    Path("begins.txt").write_text("Tengo ☃☃\n")
    given = ("translate", "checkpoint=runs/attend", "input=one.txt", "prefix=begins.txt", "device=cpu")
    for more in ([], ["replace_unknown=true"]):
        assert run(*given, *more) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith("Tengo ☃☃")
        assert "does not know 1 words or pieces of the prefixes; they are kept unchanged." in captured.err
    assert run("score", "checkpoint=runs/attend", "sources=one.txt", "references=begins.txt", "format=jsonl") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["text"] == "Tengo ☃☃" and "pieces of the references." in captured.err


def test_a_long_prefix_is_continued_like_a_short_one(place: Path) -> None:
    """Up to three times the source's length, and ten, beyond it."""
    translator = seqtool.load("runs/attend", device="cpu", beam=1)
    prefix = "Tengo un gato grande y una casa. " * 4
    source, begun = (
        known.pieces(text)
        for known, text in ((translator.source_vocabulary, "Hi."), (translator.target_vocabulary, prefix))
    )
    assert len(begun) > 3 * len(source) + 10
    (one,) = translator.hypotheses(["Hi."], prefixes=[prefix])[0]
    assert one.ended or len(one.pieces) == len(begun) + 3 * len(source) + 10
    assert len(one.pieces) > len(begun) + 1


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_what_was_expected_at_each_token(place: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of given texts and of what the search wrote, as forced decoding has it; of a cut translation without the end."""
    Path("source.txt").write_text("".join(f"{line}\n" for line in SOURCES))
    search = ("translate", f"checkpoint={checkpoint}", "input=source.txt", "beam=3", "n_best=2", "max_length=5")
    assert run(*search, "format=jsonl", "likeliest=4") == 0
    written = [json.loads(line)["translations"] for line in capsys.readouterr().out.splitlines()]
    assert not all(one["ended"] for n_best in written for one in n_best)
    vocabulary = len(seqtool.load(checkpoint.split(",")).target_vocabulary)
    for one in (one for n_best in written for one in n_best if one["tokens"]):
        ends = ["<end>"] if one["ended"] else []
        assert [each["token"] for each in one["predicted"]] == [*one["tokens"], *ends]
        total = sum(math.log(each["probability"]) for each in one["predicted"])
        assert one["log_probability"] == pytest.approx(total, abs=1e-3)
        for each in one["predicted"]:
            probabilities = [p for _, p in each["likeliest"]]
            assert (
                "<pad>" not in dict(each["likeliest"])
                and len(probabilities) == 4
                and probabilities == sorted(probabilities, reverse=True)
            )
            most = sum(-p * math.log(p) for p in probabilities if p)
            rest = max(1 - sum(probabilities), 0)
            spread = -rest * math.log(rest / vocabulary) if rest > 1e-9 else 0
            assert most - 1e-3 <= each["entropy"] <= most + spread + 1e-3
    assert run("score", f"checkpoint={checkpoint}", *PAIRS, "format=jsonl", "likeliest=2") == 0
    for record in map(json.loads, capsys.readouterr().out.splitlines()):
        found = [math.log(one["probability"]) for one in record["predicted"]]
        assert found == pytest.approx(record["log_probabilities"], abs=1e-4)
    assert run(*search, "likeliest=4") == 2
    assert run(*search, "format=jsonl", "likeliest=-1") == 2
    said = capsys.readouterr().err
    assert "likeliest= needs format=jsonl." in said and "likeliest must be at least 0, not -1." in said


def test_weights_and_the_end(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each token and <end>, a column for each of the source and its <end>; each row sums to 1."""
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "alignment", lambda matrix, source, target, path: drawn.append((matrix, source, target)))
    for name in ("attend", "transformer"):
        shown = ["format=jsonl", "weights=true", "plot=ends", "end=true"]
        assert run("score", f"checkpoint=runs/{name}", *PAIRS, *shown) == 0
        for record in map(json.loads, capsys.readouterr().out.splitlines()):
            weights = np.array(record["attention"])
            assert weights.shape == (len(record["tokens"]), len(record["source_tokens"]))
            assert np.allclose(weights.sum(1), 1, atol=2e-3) and record["source_tokens"][-1] == "<end>"
    assert len(drawn) == 2
    for matrix, source, target in drawn:
        assert source == ["I", "have", "a", "big", "cat.", "<end>"] and target == [*TARGETS[0].split(), "<end>"]
        assert matrix.shape == (len(target), len(source)) and np.allclose(matrix.sum(1), 1, atol=1e-4)
    assert run("score", "checkpoint=runs/attend", *PAIRS, "weights=true") == 2
    assert run("score", "checkpoint=runs/attend", *PAIRS, "end=true") == 2
    assert run("score", "checkpoint=runs/fixed", *PAIRS, "weights=true", "format=jsonl") == 2
    said = capsys.readouterr().err
    assert "weights=true needs format=jsonl." in said and "end=true needs plot=DIRECTORY." in said
    assert "weights=… needs a model with attention" in said


def test_alignments_of_given_pairs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["alignments=links.txt", "plot=pictures", "output=scores.jsonl", "format=jsonl"]
    assert run("score", "checkpoint=runs/attend", *PAIRS, *files) == 0
    assert capsys.readouterr().out == ""
    records = [json.loads(line) for line in Path("scores.jsonl").read_text().splitlines()]
    links = Path("links.txt").read_text().splitlines()
    assert [one["alignment"] for one in records] == links and links[0].count("-") == 4 and links[2] == ""
    assert [one.name for one in Path("pictures").iterdir()] == ["alignment-0001.png"]


def test_texts_of_a_language_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each begins anew, and has no end; what the model does not know is said."""
    texts = ["the cat", "", "x dog"]
    Path("texts.txt").write_text("\n".join(texts) + "\n")
    generator = seqtool.load("runs/text", device="cpu")
    assert isinstance(generator, Generator)
    ids = [generator.target_vocabulary.encode(text) for text in texts]
    expected = [-generator.predict_tokens(tokens, lambda _: None, likeliest=0)[0] for tokens in ids]
    assert run("score", "checkpoint=runs/text", "references=texts.txt", "format=jsonl", "device=cpu") == 0
    captured = capsys.readouterr()
    records = [json.loads(line) for line in captured.out.splitlines()]
    assert [one["text"] for one in records] == texts and "source" not in records[0]
    for record, log_p in zip(records, expected, strict=True):
        assert np.allclose(record["log_probabilities"], log_p, atol=1e-5)
        assert record["log_probability"] == pytest.approx(log_p.sum(), abs=1e-5)
    assert records[2]["unknown"] == ["x"] and records[2]["tokens"][0] == "⁇"
    assert "3 lines, 12 tokens" in captured.err and "does not know 1 " in captured.err


def test_nothing_is_longer_than_learnt_positions(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data to train on are refused, translations end, and given texts are refused."""
    learnt = [*COMMON, "data.train=200", "data.valid=5", "data.test=5", "data.vocabulary.size=200", *TRANSFORMER]
    learnt += ["model.positions=learnt", "run=learnt"]
    assert run("train", *learnt, "model.longest=20") == 2
    said = capsys.readouterr().err
    assert "tokens with its end, but the model reads at most 20, the number of learnt positions" in said
    assert run("train", *learnt, "model.longest=80") == 0
    translator = seqtool.load("runs/learnt", device="cpu", min_length=50)
    long = " ".join(["I see the big dog."] * 20)
    (one,) = translator.hypotheses([long])[0]
    assert 49 <= len(one.pieces) <= 80 and len(one.source_pieces) == 79
    with pytest.raises(InputError, match=r"min_length=100 is more than the model's 80 learnt positions: lower it\."):
        seqtool.load("runs/learnt", device="cpu", min_length=100)
    Path("long.txt").write_text(f"I see.\n{long}\n")
    translator.hypotheses([long], first_line=1)
    assert "only the first 79 are translated (the model's 80 learnt positions)." in capsys.readouterr().err
    with pytest.raises(InputError, match=r"at most the model's 80 learnt positions: shorten it\.$"):
        translator.hypotheses(["I see."], prefixes=[long])
    evaluation = ["eval", "checkpoint=runs/learnt", "bootstrap=2", "beam=1", "device=cpu"]
    assert run(*evaluation, "sources=long.txt", "references=long.txt", "plot=figures", "samples=2") == 0
    capsys.readouterr()
    Path("gold.txt").write_text("0-0\n0-0\n")
    assert run(*evaluation, "sources=long.txt", "references=long.txt", "gold=gold.txt", "format=json") == 0
    captured = capsys.readouterr()
    assert "scored without 1 of 2 lines, which are longer than the model's 80 learnt positions." in captured.err
    assert "aer" in json.loads(captured.out)["alignment"]
    assert run("score", "checkpoint=runs/learnt", "sources=long.txt", "references=long.txt", "device=cpu") == 2
    assert "dog. I …' has 181 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("checkpoint=runs/attend references=targets.txt", "name the file of their sources, sources=FILE."),
        ("checkpoint=runs/text references=targets.txt sources=sources.txt", "leave sources= out."),
        ("checkpoint=runs/attend references=targets.txt plot=new", "name the file of their sources, sources=FILE."),
        ("checkpoint=runs/attend references=text.txt sources=sources.txt", "sources.txt has 3 lines but references="),
        (
            "checkpoint=runs/attend references=empty.txt sources=empty.txt",
            "is empty: it must have one text on each line.",
        ),
        ("checkpoint=runs/text references=blank.txt", "has only empty lines: there is nothing to score."),
        ("checkpoint=runs/attend references=none.txt sources=sources.txt", "none.txt"),
        ("checkpoint=runs/fixed references=targets.txt sources=sources.txt plot=x", "needs a model with attention"),
        ("checkpoint=runs/text references=text.txt format=json", "Unknown format 'json'; choose from text, jsonl."),
        ("checkpoint=runs/text references=text.txt output=text.txt", "is the same file as references=text.txt"),
        ("checkpoint=runs/text references=text.txt beam=2", "'beam' is not a setting of score"),
        ("references=text.txt", "score needs checkpoint=…"),
    ],
)
def test_what_cannot_be_scored(place: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.txt").write_text("")
    Path("blank.txt").write_text("\n\n")
    before = sorted(place.iterdir())
    assert run("score", *arguments.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(place.iterdir()) == before
