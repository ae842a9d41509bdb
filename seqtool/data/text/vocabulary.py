"""Vocabularies: they are learnt from text, encode text as token ids, and decode token ids as text.

Pieces come from SentencePiece, or are words or characters. ▁ (U+2581) at the start of a piece is the space before it:
`"".join(pieces).replace("▁", " ").strip()` is the text. Ids 0 to 3 are padding, unknown, begin and end.

A verbatim vocabulary, for language models, keeps white space unchanged: joining the pieces of a text gives the text,
except for unknown pieces, and for ▁ itself, which is read as a space.
"""

import hashlib
import io
import json
import re
import sys
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
from seqtool.errors import InputError, place
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.runtime.files import parse_json
from seqtool.runtime.log import log
from seqtool.settings import declarations

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
UNKNOWN = "⁇"  # the text of an unknown token
BLOCK = "▅"  # U+2585
STAND_INS = {BLOCK: "\ufdd0", "\0": "\ufdd1", "\x1f": "\ufdd2"}
"""Replacements, Unicode noncharacters, for characters that SentencePiece reserves: it skips lines that have them."""

PLAIN_VERBATIM = re.compile(r" ?\w+| ?[^\w\s]|\s")  # like `CombiningMarks.verbatim`, for text without such marks

KINDS = ("unigram", "bpe", "char", "word")
NORMALIZATIONS: Mapping[str, Callable[[str], str]] = {
    "none": str,
    "nfc": partial(unicodedata.normalize, "NFC"),
    "nfkc": partial(unicodedata.normalize, "NFKC"),
}
MAX_LINE_CHARACTERS = 2**14  # longer lines are passed to SentencePiece in parts
MAX_LINE_BYTES = 4 * MAX_LINE_CHARACTERS  # a character has at most 4 bytes; SentencePiece skips longer lines
THREADS = 4  # fixed: SentencePiece's sums, and so its last digits, depend on the number of threads

DEFAULT_SIZE, VERBATIM_SIZE = 8_000, 1_000  # entries of a vocabulary whose size is not set; VERBATIM_SIZE if verbatim
MAX_NAMED_UNKNOWN = 5  # unknown pieces that a message names
LONGEST_NAMED = 40  # characters of such a piece

SOURCE, TARGET, JOINT = "source.vocabulary", "target.vocabulary", "joint.vocabulary"


class Form(NamedTuple):
    """How a vocabulary reads text."""

    kind: str  # one of `KINDS`
    normalization: str  # one of `NORMALIZATIONS`
    lowercase: bool
    verbatim: bool = False  # whether white space is kept unchanged

    @property
    def is_listed(self) -> bool:
        """Whether the vocabulary is a list of the most frequent words or characters, not a SentencePiece model."""
        return self.kind == "word" or (self.verbatim and self.kind == "char")

    def normalize(self, text: str) -> str:
        """Normalise the Unicode form, the case and the white space of a text. Idempotent.

        White space of any kind, and ▁, become single spaces. If verbatim, white space stays, and ▁ becomes a space.
        """
        form = NORMALIZATIONS[self.normalization]
        text = form(text)
        if self.lowercase:
            text = form(text.lower())  # lowering the case of a normalised text may denormalise it
        text = text.replace(SPACE, " ")
        return text if self.verbatim else " ".join(text.split())

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text for a listed vocabulary (words or verbatim characters); spaces are written ▁.

        Words are split by `words_and_punctuation`, with ▁ before each word that follows a space or begins the text.
        Verbatim pieces are characters, or words and other symbols with the space before them, and other white space.
        """
        text = self.normalize(text)
        if not self.verbatim:
            return [piece for token in text.split() for piece in _token_pieces(token)]
        if self.kind == "char":
            pieces = list(text)
        elif text.isascii() or combining_marks().characters.isdisjoint(text):
            pieces = PLAIN_VERBATIM.findall(text)
        else:
            pieces = combining_marks().verbatim.findall(text)
        return [piece.replace(" ", SPACE) for piece in pieces]


class Vocabulary(ABC):
    """Encodes text as token ids: text is normalised, split into pieces, and each piece has an id."""

    def __init__(self, pieces: Iterable[str], form: Form) -> None:
        """pieces: the pieces in the order of their ids, without the special pieces."""
        self._pieces = [*SPECIALS, *pieces]
        self._ids = {piece: index for index, piece in enumerate(self._pieces) if index >= len(SPECIALS)}
        self._unknown = SPACE + UNKNOWN if form.is_listed and not form.verbatim else UNKNOWN
        self.form = form

    def __len__(self) -> int:
        """The number of ids, including the four special ids."""
        return len(self._pieces)

    @abstractmethod
    def pieces(self, text: str) -> list[str]:
        """The pieces of the text, one for each id of `encode`. An unknown piece is spelt as in the text."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without BOS and EOS."""

    def piece(self, index: int) -> str:
        """The piece with this id. Special pieces are written in angle brackets, and the unknown piece as ⁇."""
        return self._unknown if index == UNK else self._pieces[index]

    @abstractmethod
    def body(self) -> bytes:
        """The model or list that was learnt, which `save` writes after the header."""

    def index(self, piece: str) -> int:
        """The id of a piece; UNK for a piece that is not in the vocabulary, and for special pieces."""
        return self._ids.get(piece, UNK)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS and EOS."""
        return self.encode_batch([text])[0]

    def encode_beginning(self, beginning: str | Sequence[str]) -> list[int]:
        """The ids of a text or of pieces. Pieces are not encoded as text, which could split them into other pieces."""
        return self.encode(beginning) if isinstance(beginning, str) else [self.index(piece) for piece in beginning]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids. PAD, BOS and EOS are left out."""
        pieces = (self.piece(int(index)) for index in ids if index not in (PAD, BOS, EOS))
        text = "".join(pieces).replace(SPACE, " ")
        return text if self.form.verbatim else text.strip()

    @property
    def fingerprint(self) -> str:
        """A hash of the vocabulary, in 16 hexadecimal digits."""
        return hashlib.sha256(self._bytes()).hexdigest()[:16]

    def save(self, path: Path) -> None:
        """Write the vocabulary to a file: a line of JSON (kind, size, form), and then the `body`."""
        path.write_bytes(self._bytes())

    def _bytes(self) -> bytes:
        header = {"kind": self.form.kind, "size": len(self), **self.form._asdict()}
        if not self.form.verbatim:
            del header["verbatim"]
        return json.dumps(header).encode() + b"\n" + self.body()


@final
class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model (Kudo & Richardson 2018): unigram language model, byte pair encoding or characters."""

    def __init__(self, model: bytes, form: Form) -> None:
        self._model = model
        self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()) != (PAD, UNK, BOS, EOS):
            raise ValueError("the model's special pieces have other ids than ours")
        pieces = processor.id_to_piece(list(range(processor.get_piece_size())))  # ValueError if not UTF-8
        alphabet = set().union(*pieces)
        self._to_stand_ins = {ord(char): stand_in for char, stand_in in STAND_INS.items() if stand_in in alphabet}
        self._from_stand_ins = {ord(stand_in): chr(code) for code, stand_in in self._to_stand_ins.items()}
        super().__init__(map(self._restore, pieces[len(SPECIALS) :]), form)

    def pieces(self, text: str) -> list[str]:
        return [self._restore(piece) for piece in self._processor.encode(self._normalize(text), out_type=str)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        prepared = [self._normalize(text) for text in texts]
        return list(self._processor.encode(prepared, out_type=int, num_threads=1))

    def body(self) -> bytes:
        return self._model

    def _normalize(self, text: str) -> str:
        """Normalise a text and replace reserved characters by their stand-ins, for SentencePiece."""
        text = self.form.normalize(text)
        return text.translate(self._to_stand_ins) if self._to_stand_ins else text

    def _restore(self, piece: str) -> str:
        """Put the reserved characters in place of their stand-ins."""
        return piece.translate(self._from_stand_ins) if self._from_stand_ins else piece


@final
class WordVocabulary(Vocabulary):
    """A list of words and punctuation or, if verbatim, of words or characters (`Form.pieces`)."""

    def pieces(self, text: str) -> list[str]:
        return self.form.pieces(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(piece, UNK) for piece in self.form.pieces(text)] for text in texts]

    def body(self) -> bytes:
        tokens = self._pieces[len(SPECIALS) :]
        return (json.dumps(tokens) if self.form.verbatim else "".join(f"{token}\n" for token in tokens)).encode()


def load(path: Path) -> Vocabulary:
    """Read a file that `Vocabulary.save` wrote. Raises InputError for any other file."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("a directory, pipe or device")
        header, _, body = path.read_bytes().partition(b"\n")
        stored = parse_json(header)
        size, verbatim = stored["size"], stored.get("verbatim") is True
        form = Form(stored["kind"], stored["normalization"], stored["lowercase"], verbatim)
        if form.kind not in KINDS or form.normalization not in NORMALIZATIONS or not isinstance(size, int) or size < 0:
            raise ValueError("the header is invalid")
        if form.is_listed:
            tokens = [str(token) for token in parse_json(body)] if verbatim else body.decode().split("\n")[:-1]
            vocabulary: Vocabulary = WordVocabulary(tokens, form)
        else:
            vocabulary = SentencePieceVocabulary(body, form)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is not a vocabulary file of seqtool.") from error
    if len(vocabulary) != size:
        raise InputError(f"{path} is cut short: it has {len(vocabulary):,} of {size:,} entries.")
    return vocabulary


def save_all(directory: Path, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Save the vocabulary of each side in the directory; a joint vocabulary is saved once."""
    is_joint = vocabularies.get("source") is vocabularies["target"]
    by_name = {"joint": vocabularies["target"]} if is_joint else vocabularies
    for name, vocabulary in by_name.items():
        vocabulary.save(directory / f"{name}.vocabulary")


def load_all(directory: Path, sides: Sequence[str]) -> dict[str, Vocabulary]:
    """Read the vocabulary that `save_all` wrote for each side: source and target, or only target."""
    is_pair = "source" in sides
    if is_pair and (directory / JOINT).exists():
        return dict.fromkeys(sides, load(directory / JOINT))
    files = [directory / f"{side}.vocabulary" for side in sides]
    if not all(path.exists() for path in files):
        expected = f"{SOURCE} and {TARGET}, or {JOINT}" if is_pair else TARGET
        raise InputError(f"{place(directory)} has no vocabulary: expected a directory with {expected}.")
    return dict(zip(sides, map(load, files), strict=True))


@lru_cache(maxsize=1 << 16)
def _token_pieces(token: str) -> tuple[str, ...]:
    """The words and punctuation of a text without spaces, with ▁ before the first of them."""
    first, *later_pieces = words_and_punctuation(token)
    return (SPACE + first, *later_pieces)


# Unknown pieces


def list_unknown_pieces(texts: Sequence[str], vocabulary: Vocabulary) -> str:
    """List the most frequent unknown pieces of the texts, as `list_commonest` does."""
    encoded = zip(texts, vocabulary.encode_batch(texts), strict=True)
    pieces = (zip(vocabulary.pieces(text), ids, strict=True) for text, ids in encoded if UNK in ids)
    return list_commonest(Counter(piece for piece, index in chain.from_iterable(pieces) if index == UNK))


def list_commonest(counts: Mapping[str, int]) -> str:
    """List the most frequent of these pieces, each with its count: “<” (320), “>” (318)."""
    commonest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMED_UNKNOWN]
    return ", ".join(f"“{_printable(piece)}” ({count:,})" for piece, count in commonest)


def report_unknown(counts: Counter[str], where: str) -> None:
    """Print on standard error how many unknown pieces there are, and name the most frequent of them."""
    if counts:
        listed = f"{'The commonest are' if len(counts) > MAX_NAMED_UNKNOWN else 'Unknown:'} {list_commonest(counts)}."
        pieces = "1 word or piece" if counts.total() == 1 else f"{counts.total():,} words or pieces"
        print(f"The model does not know {pieces} {where}. {listed}", file=sys.stderr)


def _printable(piece: str) -> str:
    """The text of a piece, shortened if it is long, with escapes if it cannot be printed."""
    text = piece.replace(SPACE, " ").strip(" ") or " "
    text = text if len(text) <= LONGEST_NAMED else f"{text[:LONGEST_NAMED]}…"
    return text if text.isprintable() else text.encode("unicode_escape").decode()


# Learning


@dataclass
class VocabularySettings(declarations.Vocabulary):
    """The settings under `data.vocabulary`; the YAML files of preparation in configs/ say what each is.

    If no size is set, it is `DEFAULT_SIZE` (`VERBATIM_SIZE` for plain text) or the nearest that the text allows.
    """

    def check(self) -> None:
        """Raise InputError for invalid settings."""
        declarations.check_values(self, "data.vocabulary.")
        if self.joint and (self.source_size or self.target_size):
            raise InputError(
                "A joint vocabulary has one size: set data.vocabulary.size, or data.vocabulary.joint=false."
            )

    def form(self, *, verbatim: bool) -> Form:
        """Return how a vocabulary with these settings reads text."""
        return Form(self.kind, self.normalization, self.lowercase, verbatim)


def train(
    lines: Iterable[str], settings: VocabularySettings, *, side: str | None = None, verbatim: bool = False
) -> Vocabulary:
    """Learn a vocabulary from lines of text. The same lines and settings give the same vocabulary.

    If `verbatim` (`Form`), the lines have their line ends. `side` is source or target; None if there is only one
    vocabulary. Raises InputError if there is nothing to learn from, or if the text has too few pieces or too many
    characters for the size.
    """
    settings.check()
    name = f"{side}_size" if side is not None and getattr(settings, f"{side}_size") is not None else "size"
    explicit_size, name = getattr(settings, name), f"data.vocabulary.{name}"
    size = explicit_size or (VERBATIM_SIZE if verbatim else DEFAULT_SIZE)
    form = settings.form(verbatim=verbatim)
    if form.is_listed:
        counts = Counter(chain.from_iterable(map(form.pieces, lines)))
        frequent_pieces = [piece for piece, count in counts.items() if count >= settings.minimum_count]
        if not frequent_pieces:
            entry = "symbol" if verbatim else "word"
            raise InputError(
                f"No {entry} occurs data.vocabulary.minimum_count={settings.minimum_count} times in the training text: "
                "nothing can be learnt from it. Lower this number, or add text."
            )
        frequent_pieces.sort(key=lambda piece: (-counts[piece], piece))
        return WordVocabulary(frequent_pieces[: size - len(SPECIALS)], form)
    training_text = f"the {side} side of the training text" if side else "the training text"
    normalized, possible_size = list(filter(None, map(form.normalize, lines))), size
    while True:  # a smaller size may cover fewer characters, and then allow only a still smaller one
        try:
            vocabulary = SentencePieceVocabulary(_learn_pieces(normalized, form, possible_size), form)
            break
        except RuntimeError as error:
            if "sentences_.empty()" in str(error):
                problem = "SentencePiece can learn nothing from the training text: use data.vocabulary.kind=char."
                raise InputError(problem) from error
            bound = re.search(r"set it to a value <= (\d+)|smaller than required_chars\. \d+ vs (\d+)", str(error))
            if bound is None:
                raise
            if explicit_size and bound[2]:
                problem = f"has no room for the characters of {training_text}: set it to {int(bound[2]):,} or more."
                raise InputError(f"{name}={size:,} {problem}") from error
            possible_size = int(bound[1] or bound[2])
    if explicit_size and possible_size < size:
        problem = f"is more than is possible with {training_text}: set it to {possible_size:,} or less."
        raise InputError(f"{name}={size:,} {problem}")
    if possible_size != size:
        note = "The vocabulary has %s entries, the size nearest to %s that %s allows."
        log.info(note, f"{possible_size:,}", f"{size:,}", training_text)
    return vocabulary


def _learn_pieces(lines: list[str], form: Form, size: int) -> bytes:
    """Let SentencePiece learn from lines that are already normalised (`Form.normalize`). Returns its model file."""
    characters = set().union(*lines)
    if not characters:
        raise InputError("The training text has no words: nothing can be learnt from it.")
    model = io.BytesIO()
    options: dict[str, Any] = {}
    lines = [  # longer ones are cut for SentencePiece, in the middle of a word if need be
        line[start : start + MAX_LINE_CHARACTERS]
        for line in (line.removesuffix("\n") for line in lines)
        for start in range(0, max(1, len(line)), MAX_LINE_CHARACTERS)
    ]
    if form.verbatim:
        line_ends = [end for end in "\n\r" if end == "\n" or end in characters]  # SentencePiece would strip them
        options = {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "user_defined_symbols": line_ends}
    if characters & STAND_INS.keys():
        table = str.maketrans(STAND_INS)
        lines = [line.translate(table) for line in lines]
    if any(special in line for line in lines for special in SPECIALS):  # otherwise their characters would not be learnt
        names = ("pad_piece", "unk_piece", "bos_piece", "eos_piece")
        options |= {name: f"{BLOCK}{special}" for name, special in zip(names, SPECIALS, strict=True)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=form.kind,
        vocab_size=size,
        # SentencePiece's documentation advises 1.0 for small alphabets and 0.9995 for large ones. An alphabet is small
        # here if it fills up to a quarter of the entries.
        character_coverage=1.0 if form.kind == "char" or len(characters) <= size // 4 else 0.9995,
        normalization_rule_name="identity",
        max_sentence_length=MAX_LINE_BYTES,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        num_threads=THREADS,
        minloglevel=2,  # only errors, which are also raised as exceptions
        **options,
    )
    return model.getvalue()
