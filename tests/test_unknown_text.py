"""Tests of symbols that SentencePiece reserves, which are learnt like others, and of reports of unknown text."""

import contextlib
import io
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqtool.cli import main as cli
from seqtool.data.text.vocabulary import VocabularySettings, load, train
from seqtool.runtime.files import config_directory

KINDS = ("unigram", "bpe", "char", "word")
SETTINGS = VocabularySettings(
    kind="unigram", size=70, minimum_count=1, sample=None, normalization="none", lowercase=False, reuse=None
)
RESERVED = {
    "special pieces": "the <s>{}</s> is <unk> and <pad>",
    "one special piece": "<pad>{}",
    "within words": "x<unk>{}</s>y",
    "block": "price ▅ {} ▅▅",
    "null": "a {}\0b",
    "separator": "a {}\x1fb",
    "tab and more": "\ta\t{}\x0b\x0c\x1c\x85\u2028\u3000b",
    "question marks": "⁇ {} ⁇",
    "space mark": "▁a▁{}▁",
    "all": "<s> ▅ \0 \x1f ⁇ </s> ▁{}\t<unk>",
}
MACHINE = ["device=cpu", "threads=1"]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


def lines(form: str, count: int = 150) -> list[str]:
    generator = random.Random(1)
    return [form.format("".join(generator.choices("abcdefgh", k=5))) for _ in range(count)]


@pytest.mark.parametrize("verbatim", [False, True], ids=["sentences", "text"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RESERVED)
def test_reserved_symbols_are_learnt_like_others(name: str, kind: str, verbatim: bool, tmp_path: Path) -> None:
    """No symbol is unknown, decoding restores the text, and a saved vocabulary does the same."""
    texts = [f"{line}\n" if verbatim else line for line in lines(RESERVED[name])]
    size = 1000 if kind == "word" else 70
    trained = train(texts, VocabularySettings(**{**vars(SETTINGS), "kind": kind, "size": size}), verbatim=verbatim)
    trained.save(tmp_path / "saved")
    for vocabulary in (trained, load(tmp_path / "saved")):
        assert [vocabulary.piece(index) for index in (0, 2, 3)] == ["<pad>", "<s>", "</s>"]
        for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True):
            assert min(ids) > 3
            assert vocabulary.decode(ids) == vocabulary.form.normalize(text)
            assert [vocabulary.piece(index) for index in ids] == vocabulary.pieces(text)
            assert [vocabulary.index(piece) for piece in vocabulary.pieces(text)] == ids


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
@pytest.mark.parametrize("character", ["€", "é", "漢"])
def test_a_line_of_any_length_is_learnt(kind: str, character: str) -> None:
    """A line may have more bytes than SentencePiece takes, and no spaces."""
    long = [("zz " * 25_000 + character) * 2, f"{character}y" * 40_000]
    settings = VocabularySettings(**{**vars(SETTINGS), "kind": kind, "size": 60})
    for texts in ([*lines("{}"), line] for line in long):
        vocabulary = train(texts, settings)
        assert 1 not in vocabulary.encode(texts[-1][-30:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", ["text", "parallel"])
def test_prepare_names_unknown_symbols(
    data: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Symbols are named for each split and side in which more than one token in a hundred is unknown."""
    monkeypatch.chdir(tmp_path)
    known_lines, unknown_lines = lines("the {} ▅ <unk>"), lines("{} Ж漢", 40)
    for name, texts in (("train", known_lines), ("other", unknown_lines)):
        pairs = [f"{text}\t{text}" for text in texts] if data == "parallel" else texts
        Path(name).write_text("".join(f"{line}\n" for line in pairs), encoding="utf-8")
    size = 1000 if kind == "word" else 60
    command = ["prepare", f"data={data}", "data.train=train", "data.processes=1", f"data.vocabulary.kind={kind}"]
    command.append(f"data.vocabulary.size={size}")
    assert run(*command, "data.valid=train") == 0
    output = capsys.readouterr().out
    assert output.count("0.00%") == 2 and "unknown to the vocabulary" not in output
    assert run(*command, "data.valid=other") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Many tokens are unknown to the vocabulary, ") and "in train" not in last
    unknown = "Ж" if data == "text" and kind == "char" else "Ж漢"
    assert last.count(f"“{unknown}” (40)") == (2 if data == "parallel" else 1)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with a translator and a language model of ASCII letters."""
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        Path("train.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines("the {}")))
        Path("train.txt").write_text("".join(f"{line}\n" for line in lines("the {}")))
        Path("unknown.tsv").write_text("ЖЖ the abc\tabc\n" * 9, encoding="utf-8")
        common = ["data.processes=1", *MACHINE, "train.minutes=null", "train.steps=1", "model.embedding=8"]
        sizes = [f"model.{size}=8" for size in ("encoder_hidden", "decoder_hidden", "alignment", "maxout")]
        pairs = ["data=parallel", "data.train=train.tsv", "data.vocabulary.size=30", *sizes]
        assert run("train", *common, *pairs, "data.valid=train.tsv", "run=pairs") == 0
        text = ["data=text", "data.train=train.txt", "model=language_model", "model.hidden=8", "train.batch_size=2"]
        assert run("train", *common, *text, "run=text") == 0
        yield Path.cwd()


def test_train_ends_with_the_unknown_symbols(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["data.processes=1", *MACHINE, "train.minutes=null", "train.steps=1", "model.embedding=8"]
    data = ["data=parallel", "data.train=train.tsv", "data.vocabulary.size=30", "model=sutskever", "model.hidden=8"]
    for valid, unknown in (("train.tsv", False), ("unknown.tsv", True)):
        capsys.readouterr()
        assert run("train", *common, *data, f"data.valid={valid}", "model.layers=1", f"run=of-{valid[:5]}") == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert ("in valid's source: “ЖЖ” (9)" in last) == unknown == ("Many tokens are unknown" in last)


def test_unknown_symbols_are_named(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("generate", "checkpoint=runs/text", "prompt=the ЖЖ\u202e漢", "max_length=2", *MACHINE) == 0
    message = "The model does not know 4 words or pieces of the prompt. Unknown: “Ж” (2), “\\u202e” (1), “漢” (1).\n"
    assert message in capsys.readouterr().err
    Path("lines").write_text("the Ж\nabc\nЖ 漢字 a\n", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    files = {"translate": ["input=lines", "beam=1"], "score": ["sources=lines", "references=lines"]}
    for command, settings in files.items():
        assert run(command, "checkpoint=runs/pairs", *settings, "format=jsonl", *MACHINE) == 0
        captured = capsys.readouterr()
        assert len([json.loads(line) for line in captured.out.splitlines()]) == 3
        assert "The model does not know 3 words or pieces of the " in captured.err
        assert "Unknown: “Ж” (2), “漢字” (1)." in captured.err
    Path("lines").write_text(3000 * "字", encoding="utf-8")
    assert run("translate", "checkpoint=runs/pairs", "input=lines", "beam=1", *MACHINE) == 0
    assert f"Unknown: “{40 * '字'}…” (1)." in capsys.readouterr().err
