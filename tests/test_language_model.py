"""Tests of language models: text is kept exactly, streams carry the state, and text is generated and scored."""

import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import copy_with_fast_parts

import seqtool
from seqtool.cli import main as cli
from seqtool.data.batches import Streams
from seqtool.data.corpora.plain_text import PlainText
from seqtool.data.text.vocabulary import Vocabulary, VocabularySettings, load
from seqtool.data.text.vocabulary import train as train_vocabulary
from seqtool.errors import InputError
from seqtool.models.fast import decoding
from seqtool.models.initialisation import initialise
from seqtool.models.language_model import LanguageModel
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.predict.generator import Draft
from seqtool.runtime.files import config_directory

KINDS = ("char", "word", "bpe", "unigram")
ODD_TEXT = "  two  spaces\tand a tab,\r\n\n\n   The end?? 1984's  \n"
TEXT = "".join(f"the {animal} sees the {thing}.\n" for animal in ("cat", "dog", "cow") for thing in ("sun", "sky")) * 9


def learn_vocabulary(text: str, kind: str, **changes: Any) -> Vocabulary:
    defaults = {"size": 60, "minimum_count": 1, "sample": None, "normalization": "none", "lowercase": False}
    settings = VocabularySettings(kind=kind, reuse=None, **{**defaults, **changes})
    return train_vocabulary(text.splitlines(keepends=True), settings, verbatim=True)


def make_corpus(**settings: Any) -> PlainText:
    return PlainText(**{"train": None, "valid": None, "test": None, "valid_share": 0.1, **settings})


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


def make_small_model(cell: str = "lstm", *, fast: bool = False, dropout: float = 0.0) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(target_vocabulary=11, embedding=5, hidden=7, layers=2, cell=cell, dropout=dropout, tie="none")
    initialise(model, "default")
    return (copy_with_fast_parts(model) if fast else model).train(dropout > 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [ODD_TEXT, TEXT, "naïve 日本 text — no end"])
def test_decoding_restores_a_text_exactly(kind: str, text: str, tmp_path: Path) -> None:
    vocabulary = learn_vocabulary(text, kind, size=60 if kind in ("char", "word") else 5 + len(set(text)))
    assert vocabulary.decode(vocabulary.encode(text)) == text
    ids = [index for line in text.splitlines(keepends=True) for index in vocabulary.encode(line)]
    assert vocabulary.decode(ids) == text
    vocabulary.save(tmp_path / "v")
    loaded = load(tmp_path / "v")
    assert loaded.fingerprint == vocabulary.fingerprint and loaded.encode(text) == vocabulary.encode(text)
    assert len(vocabulary.pieces(text)) == len(vocabulary.encode(text))


def test_unknown_symbols_become_unk_and_space_marks_spaces() -> None:
    vocabulary = learn_vocabulary("ab ", "char")
    assert vocabulary.encode("a?b") == [vocabulary.encode("a")[0], UNK, vocabulary.encode("b")[0]]
    assert vocabulary.decode(vocabulary.encode("a?b▁")) == "a⁇b "
    with pytest.raises(InputError, match=r"^No symbol occurs data\.vocabulary\.minimum_count=9 times"):
        learn_vocabulary("ab ", "char", minimum_count=9)


def test_tiny_shakespeare_is_encoded_and_divided_exactly(shared: Path) -> None:
    file = shared / "data/tinyshakespeare/input.txt"
    text = file.read_bytes().decode()
    vocabulary = learn_vocabulary(text, "char", size=1000)
    assert len(vocabulary) - 4 == 65 and vocabulary.decode(vocabulary.encode(text)) == text  # 65 characters occur in it
    parts = ["".join(make_corpus(train=str(file)).lines(split)) for split in ("train", "valid")]
    assert list(map(len, parts)) == [1_003_854, 111_540] and "".join(parts) == text  # 90 and 10 %


def test_texts_are_joined_and_divided_at_a_character(tmp_path: Path) -> None:
    """The division does not depend on line ends. With a file to validate on, the training text is left whole."""
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo")
    (tmp_path / "b.txt").write_bytes("  drei\n\nfünf\n".encode())
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    whole = "one\r\ntwo  drei\n\nfünf\n"
    for share in (0.1, 0.5, 0.9):
        corpus = make_corpus(train=files, valid_share=share)
        train, valid = ("".join(corpus.lines(split)) for split in ("train", "valid"))
        assert train + valid == whole and len(train) == int(len(whole) * (1 - share))
    corpus = make_corpus(train=files[0], valid=files[1], test=files[0])
    assert ["".join(corpus.lines(split)) for split in corpus.splits()] == [whole[:8], whole[8:], whole[:8]]
    with pytest.raises(InputError, match=r"^data\.valid_share=0\.99 of 8 characters leaves nothing to train on\."):
        list(make_corpus(train=files[0], valid_share=0.99).lines("train"))
    with pytest.raises(InputError, match=r"^data\.valid_share must be above 0 and below 1, not 1\."):
        make_corpus(valid_share=1.0)


def test_without_files_the_built_in_sentences_are_used() -> None:
    corpus = make_corpus()
    assert corpus.splits() == ("train", "valid") and corpus.fingerprint(lambda path: "")["built_in"]["train"] == 20_000
    assert all(line.endswith((".\n", "?\n")) for line in islice(corpus._lines("train"), 100))


@pytest.mark.parametrize(("length", "rows", "steps"), [(100, 4, 7), (23, 5, 4), (3, 8, 2), (50, 1, 50), (11, 3, 100)])
def test_streams_contain_every_token_once(length: int, rows: int, steps: int) -> None:
    tokens = np.arange(4, 4 + length).astype(np.uint16)
    streams = Streams(tokens, stream_count=rows, steps=steps)
    labels, position = [], 0
    assert streams.stream_count == min(rows, length) and streams.tokens == length
    while following := streams.batches(position, 1):
        (spans,) = following
        batch = streams.collate(spans)
        assert batch.continues == (position > 0) and batch.tokens == streams.count_labels(spans)
        assert len(batch.target) == streams.count_targets(spans)
        for row, (start, end, _) in zip(batch.target, spans, strict=True):
            row_labels = row[1:][row[1:] != PAD].tolist()
            assert row_labels == tokens[start:end].tolist()
            assert int(row[0]) == (BOS if start == 0 else tokens[start - 1])
            labels += row_labels
        position += 1
    assert position == len(streams) and sorted(labels) == tokens.tolist()
    assert streams.fraction_done(0) == 0 and streams.fraction_done(position) == 1


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "gru_cho"])
@pytest.mark.parametrize("fast", [False, True])
def test_forward_equals_stepping_equals_prefilling(cell: str, fast: bool) -> None:
    """A text read in two parts, with the state carried, gives what one pass gives; rows do not affect each other."""
    model, tokens = make_small_model(cell, fast=fast), torch.randint(4, 11, (3, 8))
    output = model(None, tokens)
    memory, initial = model.encode(None)
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
    torch.testing.assert_close(model.step(memory, initial, tokens[:1, 0]).logits, model.project(output.features[:1, 0]))


def test_only_the_output_embedding_can_be_tied() -> None:
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


def test_fast_parts_give_the_same_gradients() -> None:
    tokens, labels = torch.randint(4, 11, (4, 9)), torch.randint(4, 11, (4, 9))
    gradients = []
    for fast in (False, True):
        model = make_small_model(fast=fast).double()
        model.loss(model(None, tokens).features, labels, 0.0).total.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    torch.testing.assert_close(*gradients)


SETTINGS = [
    *("data=text", "data.train=a.txt", "data.processes=1", "model=language_model", "model.embedding=8"),
    *("model.hidden=24", "model.dropout=0", "optim.lr=0.02", "train.batch_size=4", "train.bptt=12", "device=cpu"),
    *("threads=1", "train.minutes=null", "train.steps=300"),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a repetitive text, a run that has learnt it (runs/a), and other small files."""
    workspace = tmp_path_factory.mktemp("text")
    (workspace / "a.txt").write_text(TEXT)
    (workspace / "e.txt").write_text("")
    (workspace / "bom.txt").write_bytes(b"\xef\xbb\xbf")
    (workspace / "pairs").mkdir()
    words = VocabularySettings("word", 9, 1, None, "none", False, None)
    train_vocabulary(["a b"], words).save(workspace / "pairs" / "target.vocabulary")
    (workspace / "b.txt").write_text("the cat sees the sun.\nÜber\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)
        assert run("train", *SETTINGS, "run=a") == 0
    return workspace


def test_training_learns_a_repetitive_text(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the animal (one of three) and what it sees (one of two) cannot be predicted in each line."""
    monkeypatch.chdir(workspace)
    records = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "valid_bits" in record][-1]
    assert last["valid_bits"] == pytest.approx(last["valid_loss"] / math.log(2))
    assert last["valid_bits"] < 0.4
    samples = seqtool.load("runs/a", n=40, max_length=30, stop=["\n"], temperature=0.3).samples(["the "])[0]
    assert sum(f"the {sample.text}\n" in TEXT and sample.ended for sample in samples) > 30


def test_training_logs_the_number_of_tokens_and_draws_curves(
    workspace: Path, curves: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(workspace)
    assert run("train", *SETTINGS, "run=curves", "train.steps=1") == 0
    assert Path("runs/curves/learning_curves.png").stat().st_size > 5000
    assert f", {int(0.9 * len(TEXT)):,} tokens\n" in caplog.text


def test_generated_texts_continue_their_prompts(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace)
    common = ["checkpoint=runs/a", "device=cpu", "threads=1", "max_length=40"]
    capsys.readouterr()
    assert run("generate", *common, "prompt=the cat", "n=2") == 0
    printed = capsys.readouterr().out
    first, second = printed.split("-" * 20 + "\n")
    assert first.startswith("the cat") and second.startswith("the cat") and first != second
    assert run("generate", *common, "prompt=the cat", "n=2") == 0
    assert capsys.readouterr().out == printed  # the seed is the same
    assert run("generate", *common, "prompt=the ca", "likeliest=3") == 0
    assert capsys.readouterr().out.startswith("the ca\n| next token | probability |\n")
    assert run("generate", *common, "prompt=the ca", "likeliest=3", "format=jsonl") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["likeliest"] == seqtool.load("runs/a", device="cpu").predict_next("the ca", 3)["likeliest"]
    assert run("generate", *common, "prompt=the cat", "n=2", "format=jsonl", "output=o.jsonl") == 0
    record = json.loads(Path("o.jsonl").read_text())
    assert record["prompt"] == "the cat"
    assert ["the cat" + sample["text"] for sample in record["texts"]] == [text[: 7 + 40] for text in (first, second)]
    for sample in record["texts"]:
        assert "".join(sample["tokens"]).replace("▁", " ") == sample["text"] and sample["log_probability"] < 0
    Path("prompts.txt").write_text("the cat\nthe dog\n")
    assert run("generate", *common, "input=prompts.txt", "stop=.", "top_k=1") == 0
    lines = capsys.readouterr().out.split("-" * 20 + "\n")
    assert [line[:7] for line in lines] == ["the cat", "the dog"] and "." not in "".join(lines)
    Path("prompts.txt").write_text("x" * 100_001)
    assert run("generate", *common, "input=prompts.txt") == 2
    captured = capsys.readouterr()
    assert captured.err.endswith("A prompt has 100,001 tokens, more than 100,000: shorten it.\n") and not captured.out
    Path("prompts.txt").write_text("")
    assert (run("generate", *common, "input=prompts.txt"), capsys.readouterr().out) == (0, "")
    assert run("generate", *common) == 0 and len(capsys.readouterr().out.rstrip("\n")) >= 39  # without a prompt


def test_a_transformers_window_is_as_long_as_train_bptt(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So all positions are learnt. Evaluation, generation and scores work as with other language models."""
    monkeypatch.chdir(workspace)
    sizes = ["model.width=8", "model.heads=2", "model.layers=1", "model.feed_forward=8"]
    sizes += ["train.steps=2", "train.show=1"]
    training_settings = [setting for setting in SETTINGS if not setting.startswith("model")]
    assert run("train", *training_settings, "model=transformer_language_model", *sizes, "run=windows") == 0
    (model,) = seqtool.load("runs/windows", device="cpu").models
    assert model.context == 12 == len(model.decoder.words.position_embedding.weight)
    capsys.readouterr()
    assert run("eval", "checkpoint=runs/windows", "text=a.txt", "format=json", "bootstrap=2", "device=cpu") == 0
    assert json.loads(capsys.readouterr().out)["loss"] > 0
    assert run("generate", "checkpoint=runs/windows", "prompt=the", "max_length=40", "device=cpu") == 0
    assert len(capsys.readouterr().out) == 3 + 40 + 1
    assert run("score", "checkpoint=runs/windows", "references=a.txt", "device=cpu") == 0
    samples = []
    for fast in (True, False):  # with and without the separate step for a single text
        monkeypatch.setattr(decoding, "mkl_is_fast", lambda fast=fast: fast)
        generator = seqtool.load(["runs/windows", "runs/windows/last"], max_length=40, device="cpu")
        samples += [sample for (sample,) in generator.samples(["the dog", ""])]
    for fast_sample, plain_sample in zip(samples[:2], samples[2:], strict=True):
        assert fast_sample.text == plain_sample.text
        assert fast_sample.log_probability == pytest.approx(plain_sample.log_probability, rel=1e-4)


def test_top_k_1_generates_the_most_probable_symbols(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    generator = seqtool.load("runs/a", top_k=1, max_length=20, device="cpu")
    (text,) = generator.generate(["the dog"])
    vocabulary, model = generator.target_vocabulary, generator.model
    tokens = vocabulary.encode("the dog" + text)
    with torch.no_grad():
        logits = model.project(model(None, torch.tensor([[BOS, *tokens]])).features)[0].clone()
    logits[:, [PAD, UNK, BOS, EOS]] = -math.inf
    assert logits.argmax(-1)[7:-1].tolist() == tokens[7:]
    ensemble = seqtool.load(["runs/a", "runs/a/last"], top_k=1, max_length=20, device="cpu")
    assert ensemble.generate(["the dog"]) == [text]


def test_generated_text_has_the_log_probability_of_scoring(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    for names in ("runs/a", ["runs/a", "runs/a/last"]):
        generator = seqtool.load(names, n=3, max_length=20, temperature=1.5, device="cpu")
        for model in generator.models:
            model.output.bias[UNK] += 9  # it would be drawn if it were not excluded
        samples = generator.samples(["the dog"])[0]
        scores = generator.forced(None, ["the dog" + sample.text for sample in samples])
        for sample, score in zip(samples, scores, strict=True):
            assert generator.target_vocabulary.piece(UNK) not in sample.pieces
            assert sample.log_probability == pytest.approx(sum(score.log_probabilities[7:]), rel=1e-4)


def test_unknown_symbols_in_a_prompt_are_reported(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace)
    assert (
        run("generate", "checkpoint=runs/a", "prompt=Üb: [x], ${y}", "max_length=5", "device=cpu", "stop=[',',b]") == 0
    )
    captured = capsys.readouterr()
    assert captured.out.startswith("Üb: [x], ${y}") and "," not in captured.out[13:]
    assert "The model does not know 10 words or pieces of the prompt." in captured.err


def test_a_draft_ends_before_the_first_stop_text() -> None:
    pieces: list[str] = []
    draft = Draft(["\n\n", "END"], pieces.append)
    has_ended = [draft.add(piece) for piece in ("a", "E", "N", "b\n", "c", "\nE", "N", "D", "x")]
    assert draft.text == "aENb\nc\n" and has_ended[:7] == [False] * 7 and has_ended[7]
    assert "".join(pieces) == "aENb\nc\n" and pieces[0] == "a"
    draft = Draft(["stop"], pieces.append)
    draft.add("not st")
    draft.pass_on()
    assert pieces[-2:] == ["not ", "st"]


BAD_INPUT = {
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
    "same file": (["generate", "checkpoint=runs/a", "input=a.txt", "output=a.txt"], "output=a.txt is the same file"),
    "format": (["generate", "checkpoint=runs/a", "format=json"], "Unknown format 'json'; choose from text, jsonl."),
    "split": (["eval", "checkpoint=runs/a", "split=none"], "The text has no split 'none'; it has train, valid."),
    "text and split": (
        ["eval", "checkpoint=runs/a", "text=a.txt", "split=train", "data=text"],
        "text= is scored instead of a split: leave data= and split= out.",
    ),
    "no checkpoint": (["eval", "task=language_modelling"], "task=language_modelling needs checkpoint=PATH,"),
    "beam": (["eval", "checkpoint=runs/a", "beam=3"], "beam= means nothing for language models."),
    "references": (["eval", "checkpoint=runs/a", "references=a.txt"], "references= means nothing for language models."),
    "text": (["eval", "text=a.txt", "hypotheses=a.txt", "references=a.txt"], "text= is for language models: add task="),
    "pair vocabulary": (["train", *SETTINGS, "data.vocabulary.reuse=pairs"], "a vocabulary for another kind of data"),
    "changed bptt": (
        ["train", "run=a", "train.resume=true", "train.bptt=7", "train.steps=500"],
        "train.bptt (12, now 7)",
    ),
    "half a character": (["generate", "checkpoint=runs/a", "prompt=\udcff"], "prompt= is not valid UTF-8."),
    "only a byte order mark": (["train", *SETTINGS, "data.valid=bom.txt"], "bom.txt is empty."),
    "empty": (["eval", "checkpoint=runs/a", "text=e.txt"], "e.txt is empty."),
    "range": (
        ["generate", "checkpoint=runs/a", "top_p=0", "n=0"],
        "N must be at least 1, not 0; top_p must be above 0",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_and_writes_nothing(
    workspace: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = BAD_INPUT[case]
    monkeypatch.chdir(workspace)
    before = {path for path in workspace.rglob("*") if path.name != "digests.json"}
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message.lower() in error.lower() and error.count("\n") <= 2
    assert {path for path in workspace.rglob("*") if path.name != "digests.json"} == before


def test_a_text_is_scored_as_one_stream(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The −log p of each token is that of one pass over the whole text; for an ensemble, of the mean probability."""
    monkeypatch.chdir(workspace)
    capsys.readouterr()
    common = ["eval", "checkpoint=runs/a", "device=cpu", "threads=1", "bootstrap=20"]
    assert run(*common, "text=b.txt", "format=json") == 0
    report = json.loads(capsys.readouterr().out)
    text = Path("b.txt").read_text()
    generator = seqtool.load("runs/a", device="cpu")
    ids = generator.target_vocabulary.encode(text)
    model = generator.model
    with torch.no_grad():
        logits = model.project(model(None, torch.tensor([[BOS, *ids[:-1]]])).features)[0]
        nats = -logits.log_softmax(-1)[range(len(ids)), ids]
    assert (report["tokens"], report["characters"], report["unknown"]) == (len(text), len(text), 3)
    assert report["loss"] == pytest.approx(float(nats.mean()), rel=1e-5)
    assert report["perplexity"] == pytest.approx(math.exp(report["loss"]))
    assert report["bits_per_character"]["value"] == pytest.approx(report["loss"] / math.log(2))
    assert report["bits_per_character"]["low"] <= report["bits_per_character"]["value"]
    assert run(*common[:1], "checkpoint=runs/a,runs/a", *common[2:], "text=b.txt", "format=jsonl") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == text.splitlines(keepends=True)
    assert sum(line["nats"] for line in lines) == pytest.approx(float(nats.sum()), rel=1e-5)
    assert run(*common) == 0
    assert "Text: the split valid, as one stream" in capsys.readouterr().out


def test_scoring_in_chunks_equals_scoring_at_once(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    generator = seqtool.load("runs/a", device="cpu")
    ids = generator.target_vocabulary.encode(TEXT[:333])
    whole, _ = generator.predict_tokens(ids, lambda size: None, likeliest=0)
    monkeypatch.setattr("seqtool.predict.generator.SCORED_TOKENS", 50)
    chunk_sizes: list[int] = []
    chunks, _ = generator.predict_tokens(ids, chunk_sizes.append, likeliest=0)
    np.testing.assert_allclose(chunks, whole, rtol=1e-4, atol=1e-6)
    assert chunk_sizes == [50] * 6 + [33]


def test_windows_know_only_the_token_before_them(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each window of 9 symbols is one pass from the initial state, over the symbol before it and its own."""
    monkeypatch.chdir(workspace)
    capsys.readouterr()
    common = ["eval", "checkpoint=runs/a", "text=b.txt", "device=cpu", "threads=1", "bootstrap=0"]
    generator = seqtool.load("runs/a", device="cpu")
    ids = [BOS, *generator.target_vocabulary.encode(Path("b.txt").read_text())]
    nats = 0.0
    for start in range(0, len(ids) - 1, 9):
        read, labels = ids[start : start + 9][: len(ids) - 1 - start], ids[start + 1 : start + 10]
        with torch.no_grad():
            log_p = generator.model.project(generator.model(None, torch.tensor([read])).features)[0].log_softmax(-1)
        nats -= float(log_p[range(len(labels)), labels].sum())
    assert run(*common, "window=9", "format=json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["window"] == 9 and report["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    assert run(*common, "format=json") == 0
    stream = json.loads(capsys.readouterr().out)
    assert "window" not in stream and stream["loss"] != pytest.approx(report["loss"], rel=1e-3)
    assert run(*common, f"window={len(ids)}", "format=json") == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(stream["loss"])
    assert run(*common, "window=9") == 0 and "Text: b.txt, in windows of 9 tokens\n" in capsys.readouterr().out
    assert run(*common, "window=0") == 2 and "window" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_vocabularies_learn_from_long_lines(kind: str) -> None:
    text = "".join(np.random.default_rng(0).choice(list("abc de"), 90_000))
    assert UNK not in learn_vocabulary(text + "\nff", kind, size=20).encode(text)


def test_streams_that_have_ended_give_an_empty_batch() -> None:
    """A process needs such a batch if its streams are shorter than those of the others by a multiple of the steps."""
    streams = Streams(np.arange(4, 101), stream_count=4, steps=12)
    batch = streams.collate(streams.chunk(len(streams) - 1)[0::2])
    assert batch.target.shape == (2, 2) and batch.tokens == 0


def test_data_settings_apply_to_eval_without_a_test_split(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace)
    capsys.readouterr()
    assert run("eval", "checkpoint=runs/a", "data.valid_share=0.5", "bootstrap=9", "format=json", "device=cpu") == 0
    assert json.loads(capsys.readouterr().out)["characters"] == len(TEXT) - len(TEXT) // 2
    assert run("eval", "checkpoint=runs/a", "data.train=gone.txt") == 2
    assert "gone.txt does not exist: give the path of the text as data.train=FILE." in capsys.readouterr().err


def test_a_stop_text_is_not_interpolated(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    common = ["generate", "checkpoint=runs/a", "device=cpu", "max_length=30", "n=2", "output=whole.txt"]
    assert run(*common, "stop=${x}", "prompt=the ") == 0
    texts = Path("whole.txt").read_text().split("-" * 20 + "\n")
    assert len(texts) == 2 and all(text.startswith("the ") for text in texts)
