"""Vocabularies, which are learnt from text: text to token ids and back, as SentencePiece pieces, words or characters.

Pieces follow one convention: ▁ (U+2581) at the start of a piece is the space before it, so that
`"".join(pieces).replace("▁", " ").strip()` is the text. Ids 0 to 3 are padding, unknown, begin and end.

A verbatim vocabulary, for language models, leaves white space as it is: the pieces of a text, joined, are the text
except for unknown pieces and ▁ itself, which is read as a space.
"""

import hashlib
import io
import json
import re
import textwrap
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, final

import sentencepiece

from seqtool.data.text.alignment import SPACE
from seqtool.data.text.words import combining_marks, words_and_punctuation
from seqtool.errors import InputError
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.runtime.files import parse_json
from seqtool.settings import declarations

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
UNKNOWN = "⁇"  # the text of an unknown token
BLOCK = "▅"  # U+2585
STAND_INS = {BLOCK: "\ufdd0", "\0": "\ufdd1", "\x1f": "\ufdd2"}
"""What SentencePiece learns and reads in place of characters that it keeps for itself, since it leaves out lines with
them: some of Unicode's noncharacters, which no text should have.
"""

UNMARKED = re.compile(r" ?\w+| ?[^\w\s]|\s")  # as `CombiningMarks.verbatim`, of a text without such marks

KINDS = ("unigram", "bpe", "char", "word")
NORMALIZATIONS: Mapping[str, Callable[[str], str]] = {
    "none": str,
    "nfc": partial(unicodedata.normalize, "NFC"),
    "nfkc": partial(unicodedata.normalize, "NFKC"),
}
PART = 2**14  # characters: longer lines are learnt from in parts; at most four bytes each
LONGEST = 4 * PART  # bytes: SentencePiece would leave out longer lines
THREADS = 4  # fixed: SentencePiece's sums, and so its last digits, depend on the number of threads

NAMED = 5  # unknown pieces

SOURCE, TARGET, JOINT = "source.vocabulary", "target.vocabulary", "joint.vocabulary"


class Form(NamedTuple):
    """How a vocabulary reads text: its kind, one of `KINDS`; its normalisation, one of `NORMALIZATIONS`; whether in
    lower case; and whether verbatim, that is with white space as it is.
    """

    kind: str
    normalization: str
    lowercase: bool
    verbatim: bool = False

    @property
    def is_listed(self) -> bool:
        """Whether the vocabulary is a list of the text's pieces by count, not a SentencePiece model."""
        return self.kind == "word" or (self.verbatim and self.kind == "char")

    def normalize(self, text: str) -> str:
        """Unicode normal form and case; white space of any kind, and ▁, become single spaces. Idempotent. Verbatim,
        white space stays as it is.
        """
        form = NORMALIZATIONS[self.normalization]
        text = form(text)
        if self.lowercase:
            text = form(text.lower())  # lowering the case of a normalised text may denormalise it
        text = text.replace(SPACE, " ")
        return text if self.verbatim else " ".join(text.split())

    def pieces(self, text: str) -> list[str]:
        """The pieces of the text for a list: words as `words_and_punctuation` splits them, ▁ before each that follows a
        space or begins the text. If verbatim, its characters, or its words, other white space and symbols; every space
        is written ▁.
        """
        text = self.normalize(text)
        if not self.verbatim:
            return [piece for token in text.split() for piece in _token_pieces(token)]
        if self.kind == "char":
            pieces = list(text)
        elif text.isascii() or combining_marks().characters.isdisjoint(text):
            pieces = UNMARKED.findall(text)
        else:
            pieces = combining_marks().verbatim.findall(text)
        return [piece.replace(" ", SPACE) for piece in pieces]


class Vocabulary(ABC):
    """Normalisation, then pieces, then ids. Runs of white space, and ▁ itself, count as one space, unless verbatim."""

    def __init__(self, pieces: Iterable[str], form: Form) -> None:
        """pieces: by id, after the special ones."""
        self._pieces = [*SPECIALS, *pieces]
        self._ids = {piece: index for index, piece in enumerate(self._pieces) if index >= len(SPECIALS)}
        self._unknown = SPACE + UNKNOWN if form.is_listed and not form.verbatim else UNKNOWN
        self.form = form

    def __len__(self) -> int:
        """The number of ids, the four special ones included."""
        return len(self._pieces)

    @abstractmethod
    def pieces(self, text: str) -> list[str]:
        """The pieces of the text, one for each id of `encode`; unknown ones as they are written."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without BOS and EOS."""

    def piece(self, index: int) -> str:
        """The piece with this id; special ones in angle brackets, an unknown one as ⁇."""
        return self._unknown if index == UNK else self._pieces[index]

    @abstractmethod
    def body(self) -> bytes:
        """What was learnt, as it is saved after the header."""

    def index(self, piece: str) -> int:
        """The id of a piece: UNK for one that there is not, and for the special ones."""
        return self._ids.get(piece, UNK)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_beginning(self, beginning: str | Sequence[str]) -> list[int]:
        """The ids of a text, or those of pieces: of their text other pieces might be made."""
        return self.encode(beginning) if isinstance(beginning, str) else [self.index(piece) for piece in beginning]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; padding, begin and end are left out."""
        pieces = (self.piece(int(index)) for index in ids if index not in (PAD, BOS, EOS))
        text = "".join(pieces).replace(SPACE, " ")
        return text if self.form.verbatim else text.strip()

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ between any two different vocabularies."""
        return hashlib.sha256(self._bytes()).hexdigest()[:16]

    def save(self, path: Path) -> None:
        """One file: a line of JSON (kind, size, form), then SentencePiece's model or one word per line."""
        path.write_bytes(self._bytes())

    def _bytes(self) -> bytes:
        header = {"kind": self.form.kind, "size": len(self), **self.form._asdict()}
        if not self.form.verbatim:
            del header["verbatim"]
        return json.dumps(header).encode() + b"\n" + self.body()


@final
class SentencePieceVocabulary(Vocabulary):
    """Kudo & Richardson 2018: pieces by unigram language model or byte pair encoding, or characters."""

    def __init__(self, model: bytes, form: Form) -> None:
        self._model = model
        self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()) != (PAD, UNK, BOS, EOS):
            raise ValueError("other special pieces than ours")
        pieces = processor.id_to_piece(list(range(processor.get_piece_size())))  # ValueError if not UTF-8
        learnt = set().union(*pieces)
        self._stand_ins = {ord(own): other for own, other in STAND_INS.items() if other in learnt}
        self._own = {ord(other): chr(own) for own, other in self._stand_ins.items()}
        super().__init__(map(self._restored, pieces[len(SPECIALS) :]), form)

    def pieces(self, text: str) -> list[str]:
        return [self._restored(piece) for piece in self._processor.encode(self._read(text), out_type=str)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        normalized = [self._read(text) for text in texts]
        return list(self._processor.encode(normalized, out_type=int, num_threads=1))

    def body(self) -> bytes:
        return self._model

    def _read(self, text: str) -> str:
        """The text as SentencePiece reads it."""
        text = self.form.normalize(text)
        return text.translate(self._stand_ins) if self._stand_ins else text

    def _restored(self, piece: str) -> str:
        return piece.translate(self._own) if self._own else piece


@final
class WordVocabulary(Vocabulary):
    """A list of words and punctuation or, verbatim, of words or characters: the pieces that `Form.pieces` gives."""

    def pieces(self, text: str) -> list[str]:
        return self.form.pieces(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(piece, UNK) for piece in self.form.pieces(text)] for text in texts]

    def body(self) -> bytes:
        tokens = self._pieces[len(SPECIALS) :]
        return (json.dumps(tokens) if self.form.verbatim else "".join(f"{token}\n" for token in tokens)).encode()


def load(path: Path) -> Vocabulary:
    """Read what `Vocabulary.save` wrote. Raises InputError for anything else."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("a directory, pipe or device")
        header, _, body = path.read_bytes().partition(b"\n")
        stored = parse_json(header)
        size, verbatim = stored["size"], stored.get("verbatim") is True
        form = Form(stored["kind"], stored["normalization"], stored["lowercase"], verbatim)
        if form.kind not in KINDS or form.normalization not in NORMALIZATIONS or not isinstance(size, int) or size < 0:
            raise ValueError("not what is written")
        vocabulary: Vocabulary
        if form.is_listed:
            tokens = [str(token) for token in parse_json(body)] if verbatim else body.decode().split("\n")[:-1]
            vocabulary = WordVocabulary(tokens, form)
        else:
            vocabulary = SentencePieceVocabulary(body, form)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is not a vocabulary file of seqtool.") from error
    if len(vocabulary) != size:
        raise InputError(f"{path} is cut short: it has {len(vocabulary):,} of {size:,} entries.")
    return vocabulary


def save_all(directory: Path, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Save the vocabulary of each side into the directory, one that serves both once."""
    is_joint = vocabularies.get("source") is vocabularies["target"]
    named = {"joint": vocabularies["target"]} if is_joint else vocabularies
    for name, vocabulary in named.items():
        vocabulary.save(directory / f"{name}.vocabulary")


def load_all(directory: Path, sides: Sequence[str]) -> dict[str, Vocabulary]:
    """The vocabularies that `save_all` wrote for these sides: source and target, with a joint one as one object, or
    only the target.
    """
    is_pair = "source" in sides
    if is_pair and (directory / JOINT).exists():
        return dict.fromkeys(sides, load(directory / JOINT))
    files = [directory / f"{side}.vocabulary" for side in sides]
    if not all(path.exists() for path in files):
        what, wanted = ("vocabularies", f"{SOURCE} and {TARGET}, or {JOINT}") if is_pair else ("vocabulary", TARGET)
        raise InputError(f"{directory} has no {what}: expected {wanted}.")
    return dict(zip(sides, map(load, files), strict=True))


@lru_cache(maxsize=1 << 16)
def _token_pieces(token: str) -> tuple[str, ...]:
    first, *rest = words_and_punctuation(token)
    return (SPACE + first, *rest)


# What a vocabulary does not know of a text


def unknown_in(texts: Sequence[str], vocabulary: Vocabulary) -> str:
    """The commonest pieces of the texts that the vocabulary does not know, as they are written."""
    encoded = zip(texts, vocabulary.encode_batch(texts), strict=True)
    pieces = (zip(vocabulary.pieces(text), ids, strict=True) for text, ids in encoded if UNK in ids)
    return commonest_unknown(Counter(piece for piece, index in chain.from_iterable(pieces) if index == UNK))


def commonest_unknown(counts: Mapping[str, int]) -> str:
    """The commonest of these pieces, each with its count: “<” (320), “>” (318)."""
    chosen = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NAMED]
    return ", ".join(f"“{_shown(piece)}” ({count:,})" for piece, count in chosen)


def unknown_sentence(counts: Mapping[str, int]) -> str:
    """A sentence that names the pieces that a vocabulary does not know."""
    return f"{'The commonest are' if len(counts) > NAMED else 'Unknown:'} {commonest_unknown(counts)}."


def _shown(piece: str) -> str:
    text = piece.replace(SPACE, " ").strip(" ") or " "
    return text if text.isprintable() else text.encode("unicode_escape").decode()


# Learning


@dataclass
class VocabularySettings(declarations.Vocabulary):
    """kind: unigram, bpe, char or word. size: entries, the four special ones included, exact for unigram and
    bpe, a maximum for char and word; source_size and target_size, if not null, replace it on their side.
    joint: one vocabulary for both languages. minimum_count: least count of a word, or a text's character. sample:
    SentencePiece learns from this many pairs, drawn evenly; null for all, which it then holds in memory.
    normalization: none, nfc or nfkc. reuse: the directory of a cache or checkpoint whose vocabularies are
    taken as they are, the other settings then unused.
    """

    def check(self) -> None:
        """Raise InputError for a value that no vocabulary can have."""
        declarations.check_values(self, "data.vocabulary.")
        if self.joint and (self.source_size or self.target_size):
            raise InputError(
                "A joint vocabulary has one size: set data.vocabulary.size, or data.vocabulary.joint=false."
            )

    def form(self, *, verbatim: bool) -> Form:
        return Form(self.kind, self.normalization, self.lowercase, verbatim)


def train(
    lines: Iterable[str], settings: VocabularySettings, *, side: str | None = None, verbatim: bool = False
) -> Vocabulary:
    """Learn a vocabulary from lines of text: of the source, of the target, or (None) of both together. If verbatim,
    the lines include their line ends.

    The same lines and settings give the same vocabulary. Raises InputError if the text has nothing to learn
    from, cannot fill the size asked for, or does not fit into it.
    """
    settings.check()
    own = getattr(settings, f"{side}_size") if side else None
    size, name = (settings.size, "data.vocabulary.size") if own is None else (own, f"data.vocabulary.{side}_size")
    form = settings.form(verbatim=verbatim)
    if form.is_listed:
        counts = Counter(chain.from_iterable(map(form.pieces, lines)))
        frequent = [piece for piece, count in counts.items() if count >= settings.minimum_count]
        if not frequent:
            what = "symbol" if verbatim else "word"
            raise InputError(
                f"No {what} occurs data.vocabulary.minimum_count={settings.minimum_count} times in the training text: "
                "nothing can be learnt from it."
            )
        frequent.sort(key=lambda piece: (-counts[piece], piece))
        return WordVocabulary(frequent[: size - len(SPECIALS)], form)
    try:
        return SentencePieceVocabulary(_learn_pieces(filter(None, map(form.normalize, lines)), form, size), form)
    except RuntimeError as error:
        text = f"the {side} side of the training text" if side else "the training text"
        if match := re.search(r"size too high \(\d+\)\. Please set it to a value <= (\d+)", str(error)):
            problem = f"{name}={size:,} is more than is possible with {text}: set it to {int(match[1]):,} or less."
        elif match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            problem = f"{name}={size:,} has no room for the characters of {text}: set it to {int(match[1]):,} or more."
        elif "sentences_.empty()" in str(error):
            problem = "SentencePiece can learn nothing from the training text: use data.vocabulary.kind=char."
        else:
            raise
        raise InputError(problem) from error


def _learn_pieces(normalized: Iterable[str], form: Form, size: int) -> bytes:
    """SentencePiece's model file; normalisation is ours, so SentencePiece's is the identity."""
    lines = list(normalized)
    characters = set().union(*lines)
    if not characters:
        raise InputError("The training text has no words: nothing can be learnt from it.")
    model = io.BytesIO()
    options: dict[str, Any] = {}
    if form.verbatim:
        whole = (line.removesuffix("\n") for line in lines)
        lines = [line[start : start + PART] for line in whole for start in range(0, max(1, len(line)), PART)]
        ends = [end for end in "\n\r" if end == "\n" or end in characters]  # SentencePiece strips these off lines
        options = {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "user_defined_symbols": ends}
    else:
        lines = [part for line in lines for part in _cut_at_spaces(line)]
    if characters & STAND_INS.keys():
        table = str.maketrans(STAND_INS)
        lines = [line.translate(table) for line in lines]
    if any(special in line for line in lines for special in SPECIALS):  # whose characters would not be learnt
        names = ("pad_piece", "unk_piece", "bos_piece", "eos_piece")
        options |= {name: f"{BLOCK}{special}" for name, special in zip(names, SPECIALS, strict=True)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=form.kind,
        vocab_size=size,
        # SentencePiece's advice: every character of a small alphabet, most of a large one (Chinese, the web).
        character_coverage=1.0 if form.kind == "char" or len(characters) <= size // 4 else 0.9995,
        normalization_rule_name="identity",
        max_sentence_length=LONGEST,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        num_threads=THREADS,
        minloglevel=2,  # errors only: they come back as exceptions too
        **options,
    )
    return model.getvalue()


def _cut_at_spaces(line: str) -> list[str]:
    """The line, cut at spaces if it is too long for SentencePiece."""
    if len(line) <= PART or len(line.encode()) <= LONGEST:
        return [line]
    return textwrap.wrap(line, PART, break_on_hyphens=False)
