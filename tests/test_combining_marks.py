"""Tests that words are not cut at combining marks: in counts, in F1 by frequency and in language models."""

import contextlib
import json
import unicodedata
from pathlib import Path

import pytest

from seqtool.cli import main as cli
from seqtool.data.cache import Cache
from seqtool.data.text.vocabulary import VocabularySettings, load, train
from seqtool.data.text.words import words
from seqtool.metrics.words import f1_by_count
from seqtool.models.tokens import UNK
from seqtool.runtime.files import config_directory

NFD = unicodedata.normalize("NFD", "Ça déjà Été Việt")
SENTENCES = {  # words between spaces, in lower case
    "devanagari": "मैं घर जाता हूँ क्षत्रिय",
    "bengali": "আমি বাংলায় কথা বলি",
    "tamil": "நான் வீட்டுக்கு போகிறேன்",
    "thai": "ที่ นี่ มี น้ำ",
    "arabic": "مُحَمَّدٌ رَسُولُ اللَّهِ",
    "hebrew": "שָׁלוֹם עֲלֵיכֶם",
    "khmer": "ខ្ញុំ ស្រឡាញ់",
    "latin": NFD.lower(),
    "vietnamese": unicodedata.normalize("NFD", "tiếng việt"),
    "turkish": "i̇stanbul",
    "persian with a non-joiner": "می\u200cخواهم نمی\u200cشود",
    "a joiner": "क्\u200dष र",
    "variation selector": "葛\U000e0100 城",
    "beyond the first plane": "\U00011013\U00011038 \U00011013",
    "english": "don't re l’eau naïve 3",
}
SETTINGS = VocabularySettings(
    kind="word", size=500, minimum_count=1, sample=None, normalization="none", lowercase=False, reuse=None
)


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.mark.parametrize("script", SENTENCES)
def test_words_with_combining_marks_are_counted_whole(script: str) -> None:
    """The words are the same in both normal forms, and next to punctuation."""
    sentence = SENTENCES[script]
    expected = unicodedata.normalize("NFC", sentence).split()
    for text in (sentence, unicodedata.normalize("NFD", sentence), f"«{sentence.replace(' ', ', ')}»।"):
        assert words(text) == expected


@pytest.mark.parametrize("script", [script for script in SENTENCES if script != "english"])
def test_language_models_do_not_cut_words_at_marks(script: str, tmp_path: Path) -> None:
    """No piece begins with a combining mark, and the pieces decode to the text."""
    text = f"{SENTENCES[script]}. ❤\ufe0f {SENTENCES[script]}\n"
    vocabulary = train([text] * 3, SETTINGS, verbatim=True)
    vocabulary.save(tmp_path / "saved")
    words_and_marks = f"{SENTENCES[script]} . ❤\ufe0f {SENTENCES[script]}".split()
    expected = [*(f"▁{word}".replace("▁.", ".") for word in words_and_marks), "\n"]
    for used in (vocabulary, load(tmp_path / "saved")):
        pieces = used.pieces(text)
        assert ["▁" + pieces[0], *pieces[1:]] == expected
        assert used.decode(used.encode(text)) == text and UNK not in used.encode(text)


def test_f1_groups_words_by_training_count() -> None:
    """Words are grouped by how often they occur in the training data, in either normal form."""
    counts = dict.fromkeys(words("मैं जाता déjà"), 3)
    hypotheses = ["मैं गया", unicodedata.normalize("NFD", "déjà")]
    scores = f1_by_count(hypotheses, [["मैं जाता"], ["déjà"]], counts, samples=2)
    assert {score.label: score.words for score in scores if score.words} == {"2–4": 3}
    assert next(score.f1.value for score in scores if score.f1 is not None) == pytest.approx(200 * 2 / 5)


@pytest.mark.parametrize("script", ["devanagari", "latin", "persian with a non-joiner"])
def test_prepared_counts_and_scored_tokens_are_whole_words(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.chdir(tmp_path):
        sentence = SENTENCES[script]
        Path("lines").write_text(f"{sentence}\n" * 40, encoding="utf-8")
        Path("pairs").write_text(f"a\t{sentence}.\n" * 40, encoding="utf-8")
        common = ["data.processes=1", "data.vocabulary.kind=word", "data.vocabulary.size=50"]
        assert run("prepare", "data=parallel", "data.train=pairs", "data.valid=pairs", *common) == 0
        (cache,) = Path("cache").glob("parallel-*")
        counts = Cache(cache).word_counts()
        assert counts == dict.fromkeys(unicodedata.normalize("NFC", sentence).split(), 40)
        machine = ["device=cpu", "threads=1"]
        model = ["model=language_model", "model.embedding=8", "model.hidden=8", "train.batch_size=2"]
        steps = ["train.steps=1", "train.minutes=null", "run=text", *machine]
        assert run("train", "data=text", "data.train=lines", *common, *model, *steps) == 0
        Path("line").write_text(f"{sentence}\n", encoding="utf-8")
        capsys.readouterr()
        assert run("score", "checkpoint=runs/text", "references=line", "format=jsonl", *machine) == 0
        record = json.loads(capsys.readouterr().out)
        assert [token.removeprefix("▁") for token in record["tokens"]] == sentence.split()
