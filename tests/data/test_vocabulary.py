"""Tests of vocabularies: they encode and decode, can be saved and loaded, and errors name the setting to change."""

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from seqtool.data.text.vocabulary import Form, Vocabulary, VocabularySettings, load, load_all, save_all, train
from seqtool.data.text.words import words_and_punctuation
from seqtool.errors import InputError
from seqtool.models.tokens import BOS, EOS, PAD, UNK

SETTINGS = VocabularySettings(
    kind="unigram",
    size=60,
    source_size=None,
    target_size=None,
    joint=False,
    minimum_count=1,
    sample=None,
    normalization="nfc",
    lowercase=False,
    reuse=None,
)
SIDES = ("source", "target")
SIZES = {"unigram": 60, "bpe": 90, "char": 60, "word": 60}
NOUNS = ["gato", "perro", "árbol", "casa", "niña", "señor", "pingüino", "coche", "libro", "mesa"]
ADJECTIVES = ["grande", "pequeño", "rojo", "azul", "viejo", "nuevo", "lento", "rápido"]


def lines() -> Iterator[str]:
    for noun in NOUNS:
        for adjective in ADJECTIVES:
            yield f"¿Tienes un {noun} {adjective}, o «otro»?"
            yield f'Él dice: "{noun.capitalize()}" y nada más.'


@pytest.fixture(params=SIZES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def learn(kind: str) -> Vocabulary:
    return train(lines(), replace(SETTINGS, kind=kind, size=SIZES[kind]))


def test_decoding_restores_the_text(kind: str) -> None:
    vocabulary = learn(kind)
    for line in lines():
        ids = vocabulary.encode(line)
        assert vocabulary.decode([BOS, *ids, EOS, PAD, PAD]) == line
        assert UNK not in ids


def test_pieces_join_to_the_text_and_match_the_ids(kind: str) -> None:
    vocabulary = learn(kind)
    for line in (*lines(), "Хорошо 漢字 gato", "", "  ", "gato漢字 «x»"):
        pieces = vocabulary.pieces(line)
        ids = vocabulary.encode(line)
        assert "".join(pieces).replace("▁", " ").strip() == " ".join(line.split())
        assert len(pieces) == len(ids)
        for piece, index in zip(pieces, ids, strict=True):
            assert index == UNK or vocabulary.piece(index) == piece


def test_a_batch_is_encoded_like_its_sentences(kind: str) -> None:
    vocabulary = learn(kind)
    texts = [*lines(), "", "漢字"]
    assert vocabulary.encode_batch(texts) == [vocabulary.encode(text) for text in texts]
    assert vocabulary.encode_batch([]) == []


def test_the_same_text_gives_the_same_vocabulary(kind: str) -> None:
    assert learn(kind).fingerprint == learn(kind).fingerprint


def test_a_saved_vocabulary_is_loaded_unchanged(kind: str, tmp_path: Path) -> None:
    vocabulary = train(lines(), replace(SETTINGS, kind=kind, size=SIZES[kind], lowercase=True))
    vocabulary.save(tmp_path / "v")
    loaded = load(tmp_path / "v")
    assert loaded.fingerprint == vocabulary.fingerprint
    assert loaded.form == Form(kind, "nfc", lowercase=True)
    assert [loaded.piece(i) for i in range(len(loaded))] == [vocabulary.piece(i) for i in range(len(vocabulary))]
    assert loaded.encode("¿TIENES un Pingüino?") == vocabulary.encode("¿tienes un pingüino?")
    assert not list(tmp_path.glob("v?*"))


def test_special_ids_are_the_same_in_every_kind(kind: str) -> None:
    vocabulary = learn(kind)
    assert [vocabulary.piece(index) for index in (PAD, BOS, EOS)] == ["<pad>", "<s>", "</s>"]
    assert vocabulary.decode([UNK]) == "⁇"
    assert not {PAD, BOS, EOS} & set(vocabulary.encode("<pad> <s> </s> <unk>"))


def test_the_size_is_exact_or_a_maximum() -> None:
    assert len(learn("unigram")) == SIZES["unigram"]
    assert len(learn("bpe")) == SIZES["bpe"]
    assert len(train(lines(), replace(SETTINGS, kind="word", size=10))) == 10
    assert len(train(lines(), replace(SETTINGS, kind="word", size=10_000))) < 100


def test_words_are_split_as_for_alignments_and_keep_spaces() -> None:
    vocabulary = learn("word")
    text = '¿Tienes "un gato" rojo (o no)?'
    assert [piece.removeprefix("▁") for piece in vocabulary.pieces(text)] == words_and_punctuation(text)
    assert vocabulary.pieces("¿Tienes un gato?") == ["▁¿", "Tienes", "▁un", "▁gato", "?"]


def test_rare_words_are_unknown() -> None:
    text = ["a a a b b c", "a b d"]
    vocabulary = train(text, replace(SETTINGS, kind="word", minimum_count=2, size=100))
    assert [vocabulary.piece(i) for i in range(4, len(vocabulary))] == ["▁a", "▁b"]
    assert vocabulary.decode(vocabulary.encode("a c b")) == "a ⁇ b"


@pytest.mark.parametrize("normalization", ["none", "nfc", "nfkc"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_normalisation_is_idempotent(normalization: str, lowercase: bool) -> None:
    form = Form("word", normalization, lowercase)
    for text in ("e\u0301 É ﬁn ㎒ Ⓐ İstanbul", "a\u2028b\u00a0c\t d ▁e", "ẞ ſ Å ΑΣ", " \r ", "…½ ´"):
        once = form.normalize(text)
        assert form.normalize(once) == once
        if normalization != "none":
            assert unicodedata.is_normalized(normalization.upper(), once)  # type: ignore[arg-type]
    assert form.normalize("a\u2028b▁c") == "a b c"


def test_normal_forms_are_encoded_alike() -> None:
    vocabulary = learn("unigram")
    for line in lines():
        assert vocabulary.encode(unicodedata.normalize("NFD", line)) == vocabulary.encode(line)


def test_rare_characters_of_a_large_alphabet_are_unknown() -> None:
    rare = [chr(0x4E00 + i) for i in range(20)]
    text = [*lines()] * 30 + rare
    assert train(text, replace(SETTINGS, kind="bpe", size=120)).encode(rare[0])[-1] == UNK
    for settings in (replace(SETTINGS, kind="bpe", size=300), replace(SETTINGS, kind="char", size=120)):
        assert not any(UNK in ids for ids in train(text, settings).encode_batch(rare))


@pytest.mark.parametrize(("kind", "size"), [("unigram", 60), ("bpe", 150)])
def test_the_error_for_a_too_large_size_names_the_largest(kind: str, size: int) -> None:
    settings = replace(SETTINGS, kind=kind, size=5000)
    with pytest.raises(InputError) as error:
        train(lines(), settings)
    message = str(error.value)
    assert message.startswith("data.vocabulary.size=5,000 is more than is possible with the training text: set it to ")
    largest = int(message.split()[-3].replace(",", ""))
    assert size <= largest < 1000 and message.endswith(" or less.")
    assert len(train(lines(), replace(settings, size=largest))) == largest


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_without_a_size_a_small_text_has_the_largest_vocabulary(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """It has the size that the error for a larger `size` names, and the log reports this size."""
    rare = [chr(letter) for letter in range(0x3B1, 0x3C9)]  # a small size leaves out characters, and so pieces
    for texts in (list(lines()), ["a"], [*rare, *["a b"] * 20_000]):
        caplog.clear()
        with caplog.at_level("INFO", "seqtool"):
            vocabulary = train(texts, replace(SETTINGS, kind=kind, size=None), side="source")
        size = len(vocabulary)
        note = (
            f"The vocabulary has {size:,} entries, the size nearest to 8,000 that the source side of the training text"
        )
        assert caplog.messages == [f"{note} allows."]
        with pytest.raises(InputError, match=f" set it to {size:,} or less"):
            train(texts, replace(SETTINGS, kind=kind, size=size + 1))
        assert train(texts, replace(SETTINGS, kind=kind, size=size)).fingerprint == vocabulary.fingerprint


def test_without_a_size_plain_text_with_many_characters_has_room_for_them() -> None:
    text = [f"{chr(letter)}\n" for letter in range(0x4E00, 0x4E00 + 1200)]
    assert len(train(text, replace(SETTINGS, size=None), verbatim=True)) > 1200
    assert len(train(text, replace(SETTINGS, size=None, kind="char"), verbatim=True)) == 1000


def test_the_setting_of_a_side_is_named() -> None:
    settings = replace(SETTINGS, source_size=5000)
    with pytest.raises(InputError, match=r"^data\.vocabulary\.source_size=5,000 .* the source side of"):
        train(lines(), settings, side="source")
    assert len(train(lines(), settings, side="target")) == SETTINGS.size


def test_the_error_for_a_too_small_size_names_the_smallest() -> None:
    with pytest.raises(InputError) as error:
        train(lines(), replace(SETTINGS, size=20, kind="bpe"))
    message = str(error.value)
    assert message.startswith("data.vocabulary.size=20 has no room for the characters of the training text")
    smallest = int(message.split()[-3])
    assert len(train(lines(), replace(SETTINGS, size=smallest, kind="bpe"))) == smallest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"kind": "wordpiece"},
            "Unknown data.vocabulary.kind 'wordpiece'; choose from unigram, bpe, char, word.",
        ),
        (
            {"normalization": "nfd"},
            "Unknown data.vocabulary.normalization 'nfd'; choose from none, nfc, nfkc.",
        ),
        ({"size": 4}, "data.vocabulary.size must be at least 5, not 4."),
        ({"sample": 0}, "data.vocabulary.sample must be at least 1, not 0."),
        (
            {"joint": True, "target_size": 9},
            "A joint vocabulary has one size: set data.vocabulary.size, or data.vocabulary.joint=false.",
        ),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        train(lines(), replace(SETTINGS, **change))  # type: ignore[arg-type]
    assert str(error.value) == message


def test_text_without_usable_words_is_refused() -> None:
    with pytest.raises(InputError, match=r"^The training text has no words: nothing can be learnt from it\.$"):
        train(["", "  "], SETTINGS)
    with pytest.raises(InputError, match=r"No word occurs data\.vocabulary\.minimum_count=3 times"):
        train(["a b", "a c"], replace(SETTINGS, kind="word", minimum_count=3))


def test_learning_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    learn("unigram")
    assert capfd.readouterr() == ("", "")


def test_a_joint_vocabulary_is_saved_once(tmp_path: Path) -> None:
    words, pieces = learn("word"), learn("bpe")
    save_all(tmp_path, {"source": words, "target": pieces})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.vocabulary", "target.vocabulary"]
    assert [vocabulary.form.kind for vocabulary in load_all(tmp_path, SIDES).values()] == ["word", "bpe"]
    joint = tmp_path / "joint"
    joint.mkdir()
    save_all(joint, {"source": words, "target": words})
    assert [path.name for path in joint.iterdir()] == ["joint.vocabulary"]
    source, target = load_all(joint, SIDES).values()
    assert source is target
    with pytest.raises(InputError, match=r"has no vocabulary: expected a directory with source\.vocabulary and"):
        load_all(tmp_path / "elsewhere", SIDES)


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"[1]\n", b'{"kind": "unigram"}\n', b"\x80\x02pickle\n"],
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "v"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load(path)
    assert str(error.value) == f"{path} is not a vocabulary file of seqtool."


def test_pieces_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v"
    learn("bpe").save(path)
    path.write_bytes(path.read_bytes().replace("▁".encode(), b"\xe2(\x81"))
    with pytest.raises(InputError, match="v is not a vocabulary file of seqtool"):
        load(path)


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v"
    learn("word").save(path)
    content = path.read_bytes()
    size = json.loads(content.split(b"\n")[0])["size"]
    path.write_bytes(content[: content.rindex(b"\n", 0, -1) + 1])
    with pytest.raises(InputError) as error:
        load(path)
    assert str(error.value) == f"{path} is cut short: it has {size - 1:,} of {size:,} entries."
