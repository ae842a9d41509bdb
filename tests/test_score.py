"""Tests of `score`: the probabilities of given pairs and texts, and translations that continue given prefixes."""

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
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with three translators, one of them without attention, and a language model."""
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        pairs = [*COMMON, "data.train=200", "data.valid=5", "data.test=5", "data.vocabulary.size=200"]
        sizes = [f"model.{size}=8" for size in ("embedding", "encoder_hidden", "decoder_hidden", "alignment", "maxout")]
        assert run("train", *pairs, *sizes, "run=attend") == 0
        fixed = ["model=sutskever", "model.embedding=8", "model.hidden=8", "model.layers=1"]
        assert run("train", *pairs, *fixed, "run=fixed") == 0
        assert run("train", *pairs, *TRANSFORMER, "run=transformer") == 0
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
def test_scores_of_pairs_match_forced_decoding(
    workspace: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line and each token has the same log-probability, with a single model and with an ensemble."""
    translator = seqtool.load(checkpoint.split(","), device="cpu")
    assert isinstance(translator, Translator)
    expected = translator.score(SOURCES, TARGETS)
    assert run("score", f"checkpoint={checkpoint}", *PAIRS) == 0
    captured = capsys.readouterr()
    assert [float(line) for line in captured.out.splitlines()] == pytest.approx(expected, abs=1e-4)
    assert run("score", f"checkpoint={checkpoint}", *PAIRS, "format=jsonl") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["source"] for record in records] == SOURCES
    for record, target, log_p in zip(records, TARGETS, expected, strict=True):
        assert record["tokens"] == [*translator.target_vocabulary.pieces(target), "<end>"]
        assert len(record["log_probabilities"]) == len(record["tokens"])
        assert sum(record["log_probabilities"]) == pytest.approx(log_p, abs=1e-4)
        assert record["log_probability"] == pytest.approx(log_p, abs=1e-6)
    tokens = sum(len(record["tokens"]) for record in records)
    nats = -sum(expected) / tokens
    assert "score: " in captured.err
    assert f"3 lines, {tokens} tokens: {nats:.4f} nats a token, perplexity {math.exp(nats):.2f}" in captured.err


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("beam", [1, 4])
def test_continued_prefixes_match_forced_decoding(workspace: Path, checkpoint: str, beam: int) -> None:
    """The prefix is kept, and what follows has the probability that forced decoding gives it after the prefix."""
    translator = seqtool.load(checkpoint.split(","), device="cpu", beam=beam, max_length=12)
    assert isinstance(translator, Translator)
    sources, prefixes = [SOURCES[0], SOURCES[2], SOURCES[0]], ["Tengo un", "", "La casa"]
    hypotheses = [hypothesis for (hypothesis,) in translator.hypotheses(sources, prefixes=prefixes)]
    forced = translator.forced(sources, [hypothesis.text for hypothesis in hypotheses])
    for prefix, hypothesis, forced_hypothesis in zip(prefixes, hypotheses, forced, strict=True):
        pieces = translator.target_vocabulary.pieces(prefix)
        assert hypothesis.pieces[: len(pieces)] == pieces
        if hypothesis.ended and forced_hypothesis.pieces == hypothesis.pieces:
            log_p = (forced_hypothesis.log_probabilities or [])[len(pieces) :]
            assert hypothesis.log_probability == pytest.approx(sum(log_p), abs=1e-3)
        alone = translator.hypotheses([sources[0]], prefixes=[prefixes[0]])[0][0]
        assert alone.text == hypotheses[0].text


def test_unknown_words_of_a_prefix_are_kept_and_reported(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown words of the prefix stay as they are written, even if other unknown words are replaced."""
    Path("one.txt").write_text("I have a cat.\n")
    Path("begins.txt").write_text("Tengo ☃☃\n")
    command = ("translate", "checkpoint=runs/attend", "input=one.txt", "prefix=begins.txt", "device=cpu")
    for settings in ([], ["replace_unknown=true"]):
        assert run(*command, *settings) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith("Tengo ☃☃")
        assert "does not know 1 word or piece of the prefixes; they are kept unchanged." in captured.err
    assert run("score", "checkpoint=runs/attend", "sources=one.txt", "references=begins.txt", "format=jsonl") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["text"] == "Tengo ☃☃" and " of the references." in captured.err


def test_a_long_prefix_is_continued_by_the_same_length(workspace: Path) -> None:
    """A translation may be longer than its prefix by three times the length of the source plus ten."""
    translator = seqtool.load("runs/attend", device="cpu", beam=1)
    prefix = "Tengo un gato grande y una casa. " * 4
    source = translator.source_vocabulary.pieces("Hi.")
    prefix_pieces = translator.target_vocabulary.pieces(prefix)
    assert len(prefix_pieces) > 3 * len(source) + 10
    (hypothesis,) = translator.hypotheses(["Hi."], prefixes=[prefix])[0]
    assert hypothesis.ended or len(hypothesis.pieces) == len(prefix_pieces) + 3 * len(source) + 10
    assert len(hypothesis.pieces) > len(prefix_pieces) + 1


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_likeliest_matches_forced_decoding(
    workspace: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given texts and translations are compared. A translation that was cut off has no prediction of its end."""
    Path("source.txt").write_text("".join(f"{line}\n" for line in SOURCES))
    search = ("translate", f"checkpoint={checkpoint}", "input=source.txt", "beam=3", "n_best=2", "max_length=5")
    assert run(*search, "format=jsonl", "likeliest=4") == 0
    n_best_lists = [json.loads(line)["translations"] for line in capsys.readouterr().out.splitlines()]
    translations = [translation for n_best in n_best_lists for translation in n_best]
    assert not all(translation["ended"] for translation in translations)
    vocabulary_size = len(seqtool.load(checkpoint.split(",")).target_vocabulary)
    for translation in (translation for translation in translations if translation["tokens"]):
        predictions, ends = translation["predicted"], ["<end>"] if translation["ended"] else []
        assert [token["token"] for token in predictions] == [*translation["tokens"], *ends]
        total = sum(math.log(token["probability"]) for token in predictions)
        assert translation["log_probability"] == pytest.approx(total, abs=1e-3)
        for token in predictions:
            probabilities = [p for _, p in token["likeliest"]]
            assert "<pad>" not in dict(token["likeliest"])
            assert len(probabilities) == 4 and probabilities == sorted(probabilities, reverse=True)
            entropy_of_likeliest = sum(-p * math.log(p) for p in probabilities if p)
            other_mass = max(1 - sum(probabilities), 0)
            largest_rest = -other_mass * math.log(other_mass / vocabulary_size) if other_mass > 1e-9 else 0
            assert entropy_of_likeliest - 1e-3 <= token["entropy"] <= entropy_of_likeliest + largest_rest + 1e-3
    assert run("score", f"checkpoint={checkpoint}", *PAIRS, "format=jsonl", "likeliest=2") == 0
    for record in map(json.loads, capsys.readouterr().out.splitlines()):
        log_p = [math.log(token["probability"]) for token in record["predicted"]]
        assert log_p == pytest.approx(record["log_probabilities"], abs=1e-4)
    assert run(*search, "likeliest=4") == 2
    assert run(*search, "format=jsonl", "likeliest=-1") == 2
    error = capsys.readouterr().err
    assert "likeliest= needs format=jsonl." in error and "likeliest must be at least 0, not -1." in error


def test_weights_of_pairs_include_the_end(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights have a row for each token and <end>, and a column for each source token and <end>. Rows sum to 1."""
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "alignment", lambda *drawing, **_: drawn.append(drawing[:3]))
    for name in ("attend", "transformer"):
        settings = ["format=jsonl", "weights=true", "plot=ends", "end=true"]
        assert run("score", f"checkpoint=runs/{name}", *PAIRS, *settings) == 0
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
    error = capsys.readouterr().err
    assert "weights=true needs format=jsonl." in error and "end=true needs plot=DIRECTORY." in error
    assert "weights=… needs a model with attention" in error


def test_given_pairs_are_aligned(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["alignments=links.txt", "plot=pictures", "output=scores.jsonl", "format=jsonl"]
    assert run("score", "checkpoint=runs/attend", *PAIRS, *files) == 0
    assert capsys.readouterr().out == ""
    records = [json.loads(line) for line in Path("scores.jsonl").read_text().splitlines()]
    links = Path("links.txt").read_text().splitlines()
    assert [record["alignment"] for record in records] == links and links[0].count("-") == 4 and links[2] == ""
    assert [path.name for path in Path("pictures").iterdir()] == ["alignment-0001.png"]


def test_texts_are_scored_by_a_language_model(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each text starts from an empty state and has no end token. Unknown symbols are reported."""
    texts = ["the cat", "", "x dog"]
    Path("texts.txt").write_text("\n".join(texts) + "\n")
    generator = seqtool.load("runs/text", device="cpu")
    assert isinstance(generator, Generator)
    ids = [generator.target_vocabulary.encode(text) for text in texts]
    expected = [-generator.predict_tokens(tokens, lambda _: None, likeliest=0)[0] for tokens in ids]
    assert run("score", "checkpoint=runs/text", "references=texts.txt", "format=jsonl", "device=cpu") == 0
    captured = capsys.readouterr()
    records = [json.loads(line) for line in captured.out.splitlines()]
    assert [record["text"] for record in records] == texts and "source" not in records[0]
    for record, log_p in zip(records, expected, strict=True):
        assert np.allclose(record["log_probabilities"], log_p, atol=1e-5)
        assert record["log_probability"] == pytest.approx(log_p.sum(), abs=1e-5)
    assert records[2]["unknown"] == ["x"] and records[2]["tokens"][0] == "⁇"
    assert "3 lines, 12 tokens" in captured.err and "does not know 1 " in captured.err


def test_no_text_may_be_longer_than_the_learnt_positions(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training data and given texts that are longer are refused, and translations end in time."""
    settings = [*COMMON, "data.train=200", "data.valid=5", "data.test=5", "data.vocabulary.size=200", *TRANSFORMER]
    settings += ["model.positions=learnt", "run=learnt"]
    assert run("train", *settings, "model.longest=20") == 2
    error = capsys.readouterr().err
    assert "tokens with its end, but the model reads at most 20, the number of learnt positions" in error
    assert run("train", *settings, "model.longest=80") == 0
    translator = seqtool.load("runs/learnt", device="cpu", min_length=50)
    long = " ".join(["I see the big dog."] * 20)
    (hypothesis,) = translator.hypotheses([long])[0]
    assert 49 <= len(hypothesis.pieces) <= 80 and len(hypothesis.source_pieces) == 79
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
def test_unfit_arguments_of_score_are_refused(
    workspace: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.txt").write_text("")
    Path("blank.txt").write_text("\n\n")
    before = sorted(workspace.iterdir())
    assert run("score", *arguments.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(workspace.iterdir()) == before
