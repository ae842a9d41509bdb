"""Language models: texts as they stand, streams whose state is carried, and text that is written."""

import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import of_fast_parts

import seqtool
from seqtool.cli import main as cli
from seqtool.data.batches import Streams
from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.text import vocabulary
from seqtool.data.text.vocabulary import Vocabulary, VocabularySettings, load
from seqtool.errors import InputError
from seqtool.models.fast import decoding
from seqtool.models.initialisation import initialise
from seqtool.models.language_model import LanguageModel
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.predict.generator import Draft
from seqtool.runtime.files import config_directory

KINDS = ("char", "word", "bpe", "unigram")
ODD = "  two  spaces\tand a tab,\r\n\n\n   The end?? 1984's  \n"
TEXT = "".join(f"the {animal} sees the {other}.\n" for animal in ("cat", "dog", "cow") for other in ("sun", "sky")) * 9


def learnt(text: str, kind: str, **others: Any) -> Vocabulary:
    settings = {"size": 60, "minimum_count": 1, "sample": None, "normalization": "none", "lowercase": False}
    made = VocabularySettings(kind=kind, reuse=None, **{**settings, **others})
    return vocabulary.train(text.splitlines(keepends=True), made, verbatim=True)


def corpus(**settings: Any) -> PlainText:
    return PlainText(**{"train": None, "valid": None, "test": None, "valid_share": 0.1, **settings})


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


def small(cell: str = "lstm", *, quick: bool = False, dropout: float = 0.0) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(target_vocabulary=11, embedding=5, hidden=7, layers=2, cell=cell, dropout=dropout, tie="none")
    initialise(model, "default")
    return (of_fast_parts(model) if quick else model).train(dropout > 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [ODD, TEXT, "naïve 日本 text — no end"])
def test_a_text_is_its_pieces_joined(kind: str, text: str, tmp_path: Path) -> None:
    known = learnt(text, kind, size=60 if kind in ("char", "word") else 5 + len(set(text)))
    assert known.decode(known.encode(text)) == text
    lines = [index for line in text.splitlines(keepends=True) for index in known.encode(line)]
    assert known.decode(lines) == text
    known.save(tmp_path / "v")
    again = load(tmp_path / "v")
    assert again.fingerprint == known.fingerprint and again.encode(text) == known.encode(text)
    assert len(known.pieces(text)) == len(known.encode(text))


def test_what_is_unknown_or_a_space_in_disguise() -> None:
    known = learnt("ab ", "char")
    assert known.encode("a?b") == [known.encode("a")[0], UNK, known.encode("b")[0]]
    assert known.decode(known.encode("a?b▁")) == "a⁇b "
    with pytest.raises(InputError, match=r"^No symbol occurs data\.vocabulary\.minimum_count=9 times"):
        learnt("ab ", "char", minimum_count=9)


def test_tiny_shakespeare(shared: Path) -> None:
    file = shared / "data/tinyshakespeare/input.txt"
    text = file.read_bytes().decode()
    known = learnt(text, "char", size=1000)
    assert len(known) - 4 == 65 and known.decode(known.encode(text)) == text
    parts = ["".join(corpus(train=str(file)).lines(split)) for split in ("train", "valid")]
    assert list(map(len, parts)) == [1_003_854, 111_540] and "".join(parts) == text


def test_where_a_text_is_divided(tmp_path: Path) -> None:
    """At a character, whatever the lines are; several files are joined; a file to validate on leaves the rest whole."""
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo")
    (tmp_path / "b.txt").write_bytes("  drei\n\nfünf\n".encode())
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    whole = "one\r\ntwo  drei\n\nfünf\n"
    for share in (0.1, 0.5, 0.9):
        made = corpus(train=files, valid_share=share)
        train, valid = ("".join(made.lines(split)) for split in ("train", "valid"))
        assert train + valid == whole and len(train) == int(len(whole) * (1 - share))
    made = corpus(train=files[0], valid=files[1], test=files[0])
    assert ["".join(made.lines(split)) for split in made.splits()] == [whole[:8], whole[8:], whole[:8]]
    with pytest.raises(InputError, match=r"^data\.valid_share=0\.99 of 8 characters leaves nothing to train on\."):
        list(corpus(train=files[0], valid_share=0.99).lines("train"))
    with pytest.raises(InputError, match=r"^data\.valid_share must be above 0 and below 1, not 1\."):
        corpus(valid_share=1.0)


def test_without_a_file_the_text_is_the_built_in_sentences() -> None:
    made = corpus()
    assert made.splits() == ("train", "valid") and made.fingerprint(lambda path: "")["built_in"]["train"] == 20_000
    assert all(line.endswith((".\n", "?\n")) for line in islice(made._lines("train"), 100))


@pytest.mark.parametrize(("length", "rows", "steps"), [(100, 4, 7), (23, 5, 4), (3, 8, 2), (50, 1, 50), (11, 3, 100)])
def test_streams_say_every_token_once(length: int, rows: int, steps: int) -> None:
    text = np.arange(4, 4 + length).astype(np.uint16)
    streams = Streams(text, stream_count=rows, steps=steps)
    labels, position = [], 0
    assert streams.stream_count == min(rows, length) and streams.tokens == length
    while not streams.has_ended(position):
        (places,) = streams.batches(position, 1)
        batch = streams.collate(places)
        assert batch.continues == (position > 0) and batch.tokens == streams.count_labels(places)
        for row, (start, end, _) in zip(batch.target, places, strict=True):
            real = row[1:][row[1:] != PAD].tolist()
            assert real == text[start:end].tolist()
            assert int(row[0]) == (BOS if start == 0 else text[start - 1])
            labels += real
        position += 1
    assert position == len(streams) and sorted(labels) == text.tolist()
    assert streams.fraction_done(0) == 0 and streams.fraction_done(position) == 1


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "gru_cho"])
@pytest.mark.parametrize("quick", [False, True])
def test_forward_equals_stepping_equals_prefilling(cell: str, quick: bool) -> None:
    """And a text read in two parts, the state carried, is the text read at once; a row does not feel the others."""
    model, tokens = small(cell, quick=quick), torch.randint(4, 11, (3, 8))
    output = model(None, tokens)
    memory, first = model.encode(None)
    state = model.decoder.start(torch.zeros(3, 1))
    for t, token in enumerate(tokens.unbind(1)):
        step = model.step(memory, state, token)
        torch.testing.assert_close(step.logits, model.project(output.features[:, t]))
        state = step.state
    prefilled, attention, _ = model.prefill(memory, model.decoder.start(torch.zeros(3, 1)), tokens)
    assert attention is None and output.attention is None
    torch.testing.assert_close([*prefilled.layers], [*state.layers])
    torch.testing.assert_close([*output.state.layers], [*state.layers])
    half = model(None, tokens[:, :5])
    torch.testing.assert_close(model(None, tokens[:, 5:], half.state).features, output.features[:, 5:])
    torch.testing.assert_close(model(None, tokens[1:2]).features, output.features[1:2])
    torch.testing.assert_close(model.step(memory, first, tokens[:1, 0]).logits, model.project(output.features[:1, 0]))


def test_there_is_no_source_to_tie() -> None:
    sizes: dict[str, Any] = {
        "target_vocabulary": 9,
        "embedding": 4,
        "hidden": 4,
        "layers": 1,
        "cell": "gru",
        "dropout": 0.0,
    }
    model = LanguageModel(**sizes, tie="output")
    assert model.output.weight is model.target_embedding.weight
    with pytest.raises(InputError, match=r"^Unknown model\.tie 'all' of a language model; choose from none, output\.$"):
        LanguageModel(**sizes, tie="all")


def test_quicker_parts_change_nothing() -> None:
    tokens, labels = torch.randint(4, 11, (4, 9)), torch.randint(4, 11, (4, 9))
    gradients = []
    for quick in (False, True):
        model = small(quick=quick).double()
        model.loss(model(None, tokens).features, labels, 0.0).total.backward()
        gradients.append([one.grad for one in model.parameters()])
    torch.testing.assert_close(*gradients)


SETTINGS = [
    *("data=text", "data.train=a.txt", "data.processes=1", "model=language_model", "model.embedding=8"),
    *("model.hidden=24", "model.dropout=0", "optim.lr=0.02", "train.batch_size=4", "train.bptt=12", "device=cpu"),
    *("threads=1", "train.minutes=null", "train.steps=300"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text that repeats itself, and a model that has learnt it."""
    place = tmp_path_factory.mktemp("text")
    (place / "a.txt").write_text(TEXT)
    (place / "e.txt").write_text("")
    (place / "bom.txt").write_bytes(b"\xef\xbb\xbf")
    (place / "pairs").mkdir()
    words = VocabularySettings("word", 9, 1, None, "none", False, None)
    vocabulary.train(["a b"], words).save(place / "pairs" / "target.vocabulary")
    (place / "b.txt").write_text("the cat sees the sun.\nÜber\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert run("train", *SETTINGS, "run=a") == 0
    return place


def test_it_learns_a_text(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So well that what it has to choose is all that is left: one of three animals, one of two things in the sky."""
    monkeypatch.chdir(place)
    records = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "valid_bits" in record][-1]
    assert last["valid_bits"] == pytest.approx(last["valid_loss"] / math.log(2))
    assert last["valid_bits"] < 0.4
    found = seqtool.load("runs/a", n=40, max_length=30, stop=["\n"], temperature=0.3).samples(["the "])[0]
    assert sum(f"the {one.text}\n" in TEXT and one.ended for one in found) > 30


def test_the_size_of_a_text_is_said_in_tokens_and_its_curves_are_drawn(
    place: Path, curves: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(place)
    assert run("train", *SETTINGS, "run=said", "train.steps=1") == 0
    assert Path("runs/said/learning_curves.png").stat().st_size > 5000
    assert f", {int(0.9 * len(TEXT)):,} tokens\n" in caplog.text


def test_what_is_written(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    common = ["checkpoint=runs/a", "device=cpu", "threads=1", "max_length=40"]
    capsys.readouterr()
    assert run("generate", *common, "prompt=the cat", "n=2") == 0
    printed = capsys.readouterr().out
    first, second = printed.split("-" * 20 + "\n")
    assert first.startswith("the cat") and second.startswith("the cat") and first != second
    assert run("generate", *common, "prompt=the cat", "n=2") == 0
    assert capsys.readouterr().out == printed  # by the seed
    assert run("generate", *common, "prompt=the cat", "n=2", "format=jsonl", "output=o.jsonl") == 0
    record = json.loads(Path("o.jsonl").read_text())
    assert record["prompt"] == "the cat"
    assert ["the cat" + one["text"] for one in record["texts"]] == [text[:47] for text in (first, second)]
    for one in record["texts"]:
        assert "".join(one["tokens"]).replace("▁", " ") == one["text"] and one["log_probability"] < 0
    Path("prompts.txt").write_text("the cat\nthe dog\n")
    assert run("generate", *common, "input=prompts.txt", "stop=.", "top_k=1") == 0
    lines = capsys.readouterr().out.split("-" * 20 + "\n")
    assert [line[:7] for line in lines] == ["the cat", "the dog"] and "." not in "".join(lines)
    Path("prompts.txt").write_text("x" * 100_001)
    assert run("generate", *common, "input=prompts.txt") == 2
    assert "A prompt has 100,001 tokens, more than 100,000: shorten it." in capsys.readouterr().err
    Path("prompts.txt").write_text("")
    assert (run("generate", *common, "input=prompts.txt"), capsys.readouterr().out) == (0, "")
    assert run("generate", *common) == 0 and len(capsys.readouterr().out.rstrip("\n")) >= 39  # without a prompt


def test_a_transformers_windows_are_as_long_as_what_it_reads_in_training(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that every position is learnt; and it is evaluated, writes and scores as other language models do."""
    monkeypatch.chdir(place)
    sizes = [
        "model.width=8",
        "model.heads=2",
        "model.layers=1",
        "model.feed_forward=8",
        "train.steps=2",
        "train.show=1",
    ]
    own = [one for one in SETTINGS if not one.startswith("model")]
    assert run("train", *own, "model=transformer_language_model", *sizes, "run=windows") == 0
    (model,) = seqtool.load("runs/windows", device="cpu").models
    assert model.context == 12 == len(model.decoder.words.position_embedding.weight)
    capsys.readouterr()
    assert run("eval", "checkpoint=runs/windows", "text=a.txt", "format=json", "bootstrap=2", "device=cpu") == 0
    assert json.loads(capsys.readouterr().out)["loss"] > 0
    assert run("generate", "checkpoint=runs/windows", "prompt=the", "max_length=40", "device=cpu") == 0
    assert len(capsys.readouterr().out) == 3 + 40 + 1
    assert run("score", "checkpoint=runs/windows", "references=a.txt", "device=cpu") == 0
    written = []
    for fast in (True, False):  # with and without a step of its own for one text
        monkeypatch.setattr(decoding, "mkl_is_fast", lambda fast=fast: fast)
        generator = seqtool.load(["runs/windows", "runs/windows/last"], max_length=40, device="cpu")
        written += [one for (one,) in generator.samples(["the dog", ""])]
    for one, other in zip(written[:2], written[2:], strict=True):
        assert one.text == other.text
        assert one.log_probability == pytest.approx(other.log_probability, rel=1e-4)


def test_the_likeliest_symbol_is_that_of_forward(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    generator = seqtool.load("runs/a", top_k=1, max_length=20, device="cpu")
    (text,) = generator.generate(["the dog"])
    known, model = generator.target_vocabulary, generator.model
    tokens = known.encode("the dog" + text)
    with torch.no_grad():
        logits = model.project(model(None, torch.tensor([[BOS, *tokens]])).features)[0].clone()
    logits[:, [PAD, UNK, BOS, EOS]] = -math.inf
    assert logits.argmax(-1)[7:-1].tolist() == tokens[7:]
    ensemble = seqtool.load(["runs/a", "runs/a/last"], top_k=1, max_length=20, device="cpu")
    assert ensemble.generate(["the dog"]) == [text]


def test_what_is_written_has_the_probability_that_it_is_scored_with(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    for names in ("runs/a", ["runs/a", "runs/a/last"]):
        generator = seqtool.load(names, n=3, max_length=20, temperature=1.5, device="cpu")
        for model in generator.models:
            model.output.bias[UNK] += 9  # so that it would be drawn
        written = generator.samples(["the dog"])[0]
        for one, scored in zip(written, generator.forced(None, ["the dog" + one.text for one in written]), strict=True):
            assert generator.target_vocabulary.piece(UNK) not in one.pieces
            assert one.log_probability == pytest.approx(sum(scored.log_probabilities[7:]), rel=1e-4)


def test_an_unknown_symbol_in_a_prompt_is_said(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert (
        run("generate", "checkpoint=runs/a", "prompt=Üb: [x], ${y}", "max_length=5", "device=cpu", "stop=[',',b]") == 0
    )
    written = capsys.readouterr()
    assert written.out.startswith("Üb: [x], ${y}") and "," not in written.out[13:]
    assert "The prompt has 10 symbols that the model does not know." in written.err


def test_a_draft_ends_before_the_first_stop() -> None:
    given: list[str] = []
    draft = Draft(["\n\n", "END"], given.append)
    ended = [draft.add(piece) for piece in ("a", "E", "N", "b\n", "c", "\nE", "N", "D", "x")]
    assert draft.text == "aENb\nc\n" and ended[:7] == [False] * 7 and ended[7]
    assert "".join(given) == "aENb\nc\n" and given[0] == "a"
    draft = Draft(["stop"], given.append)
    draft.add("not st")
    draft.close()
    assert given[-2:] == ["not ", "st"]


BAD = {
    "another model": (["train", "data=text", "model=bahdanau"], "model=bahdanau translates sentences, but data=text"),
    "other data": (["train", "model=language_model"], "model=language_model continues text, but data=toy holds"),
    "sentences": (
        ["train", *SETTINGS, "train.batch_by=tokens"],
        "train.batch_by= means nothing for language_modelling",
    ),
    "validation": (["train", *SETTINGS, "validation.beam=3"], "validation.beam= means nothing for language_modelling"),
    "bptt": (["train", "train.bptt=7"], "train.bptt is for language models, not for translation: leave it out."),
    "no bptt": (["train", *SETTINGS, "train.bptt=0"], "train.bptt must be above 0, not 0."),
    "flow": (
        ["train", "data=text", "data.train=a.txt", "model=transformer_language_model", "train.gradient_flow=true"],
        "train.gradient_flow=true is for recurrent models, and TransformerLanguageModel has no cells",
    ),
    "windows": (
        ["train", "data=text", "data.train=a.txt", "model=transformer_language_model", "model.context=128"],
        "model.context=128 is more than train.bptt=100, the tokens read at once in training,",
    ),
    "source vectors": (["train", *SETTINGS, "embeddings.source=a.txt"], "embeddings.source means nothing without"),
    "no file": (["train", *SETTINGS, "data.train=none.txt"], "none.txt does not exist."),
    "wrong command": (["translate", "checkpoint=runs/a"], "holds a language model: use seqtool generate."),
    "no stop": (["generate", "checkpoint=runs/a", "stop=[a,'']"], "stop= has an empty text"),
    "two prompts": (["generate", "checkpoint=runs/a", "prompt=a", "input=a.txt"], "prompt= and input= both give"),
    "own input": (["generate", "checkpoint=runs/a", "input=a.txt", "output=a.txt"], "output=a.txt is the same file"),
    "format": (["generate", "checkpoint=runs/a", "format=json"], "Unknown format 'json'; choose from text, jsonl."),
    "split": (["eval", "checkpoint=runs/a", "split=none"], "The text has no split 'none'; it has train, valid."),
    "two texts": (
        ["eval", "checkpoint=runs/a", "text=a.txt", "split=train", "data=text"],
        "text= is scored instead of a split: leave data= and split= out.",
    ),
    "no checkpoint": (["eval", "task=language_modelling"], "task=language_modelling needs checkpoint=PATH,"),
    "beam": (["eval", "checkpoint=runs/a", "beam=3"], "beam= means nothing for language models."),
    "references": (["eval", "checkpoint=runs/a", "references=a.txt"], "references= means nothing for language models."),
    "text": (["eval", "text=a.txt", "hypotheses=a.txt", "references=a.txt"], "text= is for language models: add task="),
    "words of pairs": (["train", *SETTINGS, "data.vocabulary.reuse=pairs"], "a vocabulary for another kind of data"),
    "bptt later": (
        ["train", "run=a", "train.resume=true", "train.bptt=7", "train.steps=500"],
        "train.bptt (12, now 7)",
    ),
    "half a character": (["generate", "checkpoint=runs/a", "prompt=\udcff"], "prompt= is not valid UTF-8."),
    "a mark alone": (["train", *SETTINGS, "data.valid=bom.txt"], "bom.txt is empty."),
    "empty": (["eval", "checkpoint=runs/a", "text=e.txt"], "e.txt is empty."),
    "range": (
        ["generate", "checkpoint=runs/a", "top_p=0", "n=0"],
        "N must be at least 1, not 0; top_p must be above 0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(place: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, sentence = BAD[case]
    monkeypatch.chdir(place)
    before = {path for path in place.rglob("*") if path.name != "digests.json"}
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert sentence.lower() in error.lower() and error.count("\n") <= 2
    assert {path for path in place.rglob("*") if path.name != "digests.json"} == before


def test_a_text_is_scored_as_one_stream(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every token's −log p is that of one pass over the whole text; of an ensemble, that of the mean probability."""
    monkeypatch.chdir(place)
    capsys.readouterr()
    common = ["eval", "checkpoint=runs/a", "device=cpu", "threads=1", "bootstrap=20"]
    assert run(*common, "text=b.txt", "format=json") == 0
    found = json.loads(capsys.readouterr().out)
    text = Path("b.txt").read_text()
    generator = seqtool.load("runs/a", device="cpu")
    ids = generator.target_vocabulary.encode(text)
    model = generator.model
    with torch.no_grad():
        logits = model.project(model(None, torch.tensor([[BOS, *ids[:-1]]])).features)[0]
        nats = -logits.log_softmax(-1)[range(len(ids)), ids]
    assert (found["tokens"], found["characters"], found["unknown"]) == (len(text), len(text), 3)
    assert found["loss"] == pytest.approx(float(nats.mean()), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_character"]["value"] == pytest.approx(found["loss"] / math.log(2))
    assert found["bits_per_character"]["low"] <= found["bits_per_character"]["value"]
    assert run(*common[:1], "checkpoint=runs/a,runs/a", *common[2:], "text=b.txt", "format=jsonl") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == text.splitlines(keepends=True)
    assert sum(line["nats"] for line in lines) == pytest.approx(float(nats.sum()), rel=1e-5)
    assert run(*common) == 0
    assert "Text: the split valid, as one stream" in capsys.readouterr().out


def test_a_text_in_chunks_is_that_in_one_piece(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    generator = seqtool.load("runs/a", device="cpu")
    ids = generator.target_vocabulary.encode(TEXT[:333])
    whole, _ = generator.predicted(ids, lambda more: None, likeliest=0)
    monkeypatch.setattr("seqtool.predict.generator.SCORED_TOKENS", 50)
    told: list[int] = []
    chunks, _ = generator.predicted(ids, told.append, likeliest=0)
    np.testing.assert_allclose(chunks, whole, rtol=1e-4, atol=1e-6)
    assert told == [50] * 6 + [33]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_long_lines_are_learnt_from(kind: str) -> None:
    text = "".join(np.random.default_rng(0).choice(list("abc de"), 90_000))
    assert UNK not in learnt(text + "\nff", kind, size=20).encode(text)


def test_streams_that_have_ended_are_still_a_batch() -> None:
    """As for a process whose streams are shorter than those of the others, by a multiple of the steps."""
    streams = Streams(np.arange(4, 101), stream_count=4, steps=12)
    batch = streams.collate(streams.chunk(len(streams) - 1)[0::2])
    assert batch.target.shape == (2, 2) and batch.tokens == 0


def test_settings_of_the_data_are_taken_where_there_is_no_test_split(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    capsys.readouterr()
    assert run("eval", "checkpoint=runs/a", "data.valid_share=0.5", "bootstrap=9", "format=json", "device=cpu") == 0
    assert json.loads(capsys.readouterr().out)["characters"] == len(TEXT) - len(TEXT) // 2
    assert run("eval", "checkpoint=runs/a", "data.train=gone.txt") == 2
    assert "gone.txt does not exist: give the path of the text as data.train=FILE." in capsys.readouterr().err


def test_a_stop_is_taken_as_it_stands(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    common = ["generate", "checkpoint=runs/a", "device=cpu", "max_length=30", "n=2", "output=whole.txt"]
    assert run(*common, "stop=${x}", "prompt=the ") == 0
    parts = Path("whole.txt").read_text().split("-" * 20 + "\n")
    assert len(parts) == 2 and all(part.startswith("the ") for part in parts)
