"""Tests of alignment links: they number the words between white space in the text that users see, in any script."""

import contextlib
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqtool
from seqtool.cli import main as cli
from seqtool.data.text.words import SPLITS
from seqtool.runtime.files import config_directory

LINES = [
    'A man, who rides, is "happy".',
    "Mr. Smith of the U.S. saw 3.5 dogs !",
    "&quot; Yes , I do . &quot;",
    "1. don't (really) -- stop...",
    "你好，世界。 再见！",
    "هل أنت هنا، يا صديقي؟",
    "मैं घर जाता हूँ। वह आया।",
    "ça n’est pas « vrai » …",
    "two\u00a0words\u3000and a full\u2581stop\u2581",
    "I don´t know ﷺ",  # NFKC turns ´ and ﷺ into several words
    unicodedata.normalize("NFD", "Ça, é à Ü."),
]
SIZES = [f"model.{size}=8" for size in ("embedding", "encoder_hidden", "decoder_hidden", "alignment", "maxout")]
MACHINE = ["device=cpu", "threads=1"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with two models that attend, one of characters in NFKC and one of words in NFC."""
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        Path("lines").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
        Path("train.tsv").write_text("".join(f"{line}\t{line}\n" for line in LINES) * 2, encoding="utf-8")
        data = ["data=parallel", "data.train=train.tsv", "data.valid=train.tsv", "data.processes=1"]
        for kind, form in (("char", "nfkc"), ("word", "nfc")):
            vocabulary = [f"data.vocabulary.kind={kind}", f"data.vocabulary.normalization={form}"]
            line = [*data, *vocabulary, *SIZES, *MACHINE, "train.steps=1", "train.minutes=null", f"run={kind}"]
            assert run("train", *line) == 0
        yield Path.cwd()


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


def run_json(command: str, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    capsys.readouterr()
    assert run(*command.split(), "format=jsonl", "weights=true", "alignments=links", *MACHINE) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def expected_links(record: Any, source: str, target: str, form: str) -> str:
    """Return the word links that the attention of tokens implies. A token belongs to the word of its first letter."""

    def word_numbers(tokens: list[str], text: str) -> list[int]:
        spelt = ["".join(unicodedata.normalize(form, word).replace("▁", " ").split()) for word in text.split()]
        word_of_letter = [number for number, word in enumerate(spelt) for _ in word]
        starts = np.cumsum([0, *(len(token.replace("▁", "")) for token in tokens)])
        return [word_of_letter[start] if start < len(word_of_letter) else -1 for start in starts[:-1]]

    source_numbers = word_numbers(record["source_tokens"][:-1], source)
    target_numbers = word_numbers(record["tokens"], target)
    weights = np.array(record["attention"])[: len(target_numbers), :-1]
    links = []
    for word in range(len(target.split())):
        rows = weights[[number == word for number in target_numbers]]
        by_word = (
            [rows.mean(0)[[number == i for number in source_numbers]].sum() for i in range(len(source.split()))]
            if len(rows)
            else []
        )
        if max(by_word, default=0) > 0:
            links.append(f"{int(np.argmax(by_word))}-{word}")
    return " ".join(links)


@pytest.mark.parametrize(("name", "form"), [("char", "NFKC"), ("word", "NFC")])
def test_translations_have_word_links(
    workspace: Path, name: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"translate checkpoint=runs/{name} input=lines beam=1 max_length=200 replace_unknown=true"
    records = run_json(command, capsys)
    links = Path("links").read_text().splitlines()
    assert len(records) == len(links) == len(LINES) and "".join(links)
    for source, record, line in zip(LINES, records, links, strict=True):
        (best,) = record["translations"]
        assert (best["source_words"], best["words"]) == (source.split(), best["text"].split())
        assert best["alignment"] == line == expected_links(best, source, best["text"], form)


@pytest.mark.parametrize(("name", "form"), [("char", "NFKC"), ("word", "NFC")])
def test_scored_pairs_have_word_links(
    workspace: Path, name: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("reversed").write_text("".join(f"{line}\n" for line in reversed(LINES)), encoding="utf-8")
    records = run_json(f"score checkpoint=runs/{name} sources=lines references=reversed", capsys)
    for source, target, record in zip(LINES, reversed(LINES), records, strict=True):
        assert (record["source_words"], record["words"]) == (source.split(), target.split())
        record["tokens"].remove("<end>")
        assert record["alignment"] == expected_links(record, source, target, form)
        assert len(record["alignment"].split()) == len(target.split())


def test_gold_links_are_checked_against_the_words(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links between equal words are right. A link beyond the last word is refused, unless words=marks has more."""
    gold = [" ".join(f"{i}-{i}" for i in range(len(line.split()))) for line in LINES]
    Path("gold").write_text("\n".join(gold) + "\n")
    files = ["hypotheses=lines", "references=lines", "sources=lines", "bootstrap=2", "format=json", "ter=false"]
    capsys.readouterr()
    assert run("eval", *files, "alignments=gold", "gold=gold") == 0
    assert json.loads(capsys.readouterr().out)["alignment"]["aer"] == 0
    for number, line in enumerate(LINES):
        last = len(line.split())
        lines = ["0-0"] * len(LINES)
        lines[number] = f"{last}-0"
        Path("beyond").write_text("\n".join(lines) + "\n")
        settings = (["alignments=gold", "gold=beyond"], ["alignments=beyond", "gold=gold"])[number % 2]
        assert run("eval", *files, *settings) == 2
        message = f"beyond line {number + 1} has the link {last}-0, but its sentences have {last} and {last} words"
        assert message in capsys.readouterr().err
    Path("beyond").write_text("9-8\n" + "0-0\n" * (len(LINES) - 1))
    assert run("eval", *files, "alignments=beyond", "gold=beyond", "words=marks") == 0
    capsys.readouterr()
    checkpoint = ["checkpoint=runs/char", "sources=lines", "references=lines", "gold=beyond", *MACHINE]
    assert run("eval", *checkpoint, "bootstrap=2", "ter=false") == 2
    assert "beyond line 1 has the link 9-8, but its sentences have 6 and 6 words" in capsys.readouterr().err


def test_gold_links_of_the_built_in_corpus_number_marks(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links of the corpus are between words and punctuation marks, so eval of its files needs words=marks."""
    sizes = [*SIZES, "data.train=60", "data.valid=5", "data.test=20", "data.vocabulary.size=120", "data.processes=1"]
    assert run("train", *sizes, *MACHINE, "train.steps=1", "train.minutes=null", "run=toy") == 0
    arguments = ["eval", "checkpoint=runs/toy", "format=json", "bootstrap=2", "ter=false", "max_length=20", *MACHINE]
    capsys.readouterr()
    assert run(*arguments) == 0
    report = json.loads(capsys.readouterr().out)["alignment"]
    cache = next(Path("cache").glob("toy-*"))
    (source, target, gold) = (cache / f"test.{name}.txt" for name in ("source", "target", "alignments"))
    arguments += [f"sources={source}", f"references={target}", f"gold={gold}"]
    assert run(*arguments, "words=marks") == 0
    assert json.loads(capsys.readouterr().out)["alignment"] == report
    assert run(*arguments) == 2
    assert "unless words=marks or words=characters is set" in capsys.readouterr().err


def test_hypotheses_in_notebooks_have_word_links(workspace: Path) -> None:
    model = seqtool.load("runs/char", device="cpu", threads=1, beam=1)
    best = model.hypotheses([LINES[0]], attention=True)[0][0]
    assert best.source_words == LINES[0].split() and best.words == best.text.split()
    assert best.word_attention.shape == (len(best.words), len(best.source_words))
    assert {target for _, target in best.alignment} <= set(range(len(best.words)))


MARKS = {
    "你好，世界？": ["你好，世界", "？"],
    "هل أنت؟": ["هل", "أنت", "؟"],
    "मैं हूँ।": ["मैं", "हूँ", "।"],
    "really！ «no»": ["really", "！", "«", "no", "»"],
    "「犬」 です。": ["「", "犬", "」", "です", "。"],
    "ሰላም። ደህና፣": ["ሰላም", "።", "ደህና", "፣"],
    "Բարև։ τι;": ["Բարև", "։", "τι", ";"],
    "ជំរាបសួរ។ မင်္ဂလာပါ။": ["ជំរាបសួរ", "។", "မင်္ဂလာပါ", "။"],
    "the dogs’ ⁇.": ["the", "dogs’", "⁇", "."],
}


@pytest.mark.parametrize("text", MARKS)
def test_marks_of_any_script_are_split_from_words(text: str) -> None:
    """With words=marks, punctuation marks at the ends of words are words, too."""
    assert SPLITS["marks"](text) == MARKS[text]


CHARACTERS = {
    "我用 Python3 写程序。": ["我", "用", "Python3", "写", "程", "序", "。"],
    "น้ำ ดี!": ["น้", "ำ", "ดี", "!"],
    "日本語ﾃｷｽﾄ, 2.5": ["日", "本", "語", "ﾃ", "ｷ", "ｽ", "ﾄ", ",", "2", ".", "5"],
    "don't stop": ["don", "'", "t", "stop"],
}


def test_characters_can_be_words_in_scripts_without_spaces(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without words=characters, a warning says once that whole sentences count as words."""
    for text, parts in CHARACTERS.items():
        assert [unicodedata.normalize("NFC", part) for part in SPLITS["characters"](text)] == parts
    Path("chinese").write_text("你好世界再见\n再见世界你好\n", encoding="utf-8")
    score_command = "score checkpoint=runs/char sources=chinese references=chinese"
    assert [len(record["words"]) for record in run_json(f"{score_command} words=characters", capsys)] == [6, 6]
    assert len(Path("links").read_text().split()) == 12
    for command in (score_command, "translate checkpoint=runs/char input=chinese beam=1"):
        for words, warning_count in (("spaces", 1), ("characters", 0)):
            capsys.readouterr()
            assert run(*command.split(), f"words={words}", "alignments=links", *MACHINE) == 0
            assert capsys.readouterr().err.count("counts as one word in links and plots") == warning_count


def test_gold_links_may_number_characters(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words are characters in any script without spaces. With words at white space, the same links are out of range."""
    for name, text in {"s": "我爱你", "h": "ខ្ញុំស្រឡាញ់", "a": "0-0 1-1 2-2", "g": "0-0 1-1 2-3"}.items():
        Path(name).write_text(f"{text}\n", encoding="utf-8")
    command = "eval hypotheses=h references=h sources=s alignments=a gold=g ter=false bootstrap=0"
    assert run(*command.split(), "words=characters", "format=json") == 0
    assert json.loads(capsys.readouterr().out)["alignment"]["aer"] == pytest.approx(1 / 3)
    assert run(*command.split()) == 2
    assert "unless words=marks or words=characters is set" in capsys.readouterr().err
