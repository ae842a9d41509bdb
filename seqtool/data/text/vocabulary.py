"""Vocabularies: text to token ids and back, as SentencePiece pieces, words or characters.

Pieces follow one convention: ▁ (U+2581) at the start of a piece is the space before it, so that
`"".join(pieces).replace("▁", " ").strip()` is the text. Ids 0 to 3 are padding, unknown, begin and end.

A verbatim vocabulary, for language models, leaves white space as it is: the pieces of a text joined are the text, but
for unknown ones and for ▁ itself, which is read as a space.
"""

import hashlib
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import final

import sentencepiece

from seqtool.data.text.alignment import SPACE, words
from seqtool.errors import InputError
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.runtime.files import parse_json

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
UNKNOWN = "⁇"  # what an unknown token reads as

KINDS = ("unigram", "bpe", "char", "word")
NORMALIZATIONS = ("none", "nfc", "nfkc")
SOURCE, TARGET, JOINT = "source.vocabulary", "target.vocabulary", "joint.vocabulary"


class Vocabulary(ABC):
    """Normalisation, then pieces, then ids. Runs of white space, and ▁ itself, count as one space, unless verbatim."""

    def __init__(self, *, normalization: str, lowercase: bool, verbatim: bool = False) -> None:
        self.normalization = normalization
        self.lowercase = lowercase
        self.verbatim = verbatim

    @abstractmethod
    def __len__(self) -> int:
        """The number of ids, the four special ones included."""

    @abstractmethod
    def pieces(self, text: str) -> list[str]:
        """The pieces of the text, one for each id of `encode`; unknown ones as they are written."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without BOS and EOS."""

    @abstractmethod
    def piece(self, index: int) -> str:
        """The piece with this id; special ones in angle brackets, an unknown one as ⁇."""

    @abstractmethod
    def body(self) -> bytes:
        """What was learnt, as it is saved behind the header."""

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; padding, begin and end are left out."""
        pieces = (self.piece(int(index)) for index in ids if index not in (PAD, BOS, EOS))
        text = "".join(pieces).replace(SPACE, " ")
        return text if self.verbatim else text.strip()

    def normalize(self, text: str) -> str:
        return normalize(text, normalization=self.normalization, lowercase=self.lowercase, verbatim=self.verbatim)

    @property
    def kind(self) -> str:
        return "word"

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ for vocabularies that differ in anything."""
        return hashlib.sha256(self._bytes()).hexdigest()[:16]

    def save(self, path: Path) -> None:
        """One file: a line of JSON (kind, size, form), then SentencePiece's model or a word a line."""
        path.write_bytes(self._bytes())

    def _bytes(self) -> bytes:
        header = {
            "kind": self.kind,
            "size": len(self),
            "normalization": self.normalization,
            "lowercase": self.lowercase,
            **({"verbatim": True} if self.verbatim else {}),
        }
        return json.dumps(header).encode() + b"\n" + self.body()


@final
class SentencePieceVocabulary(Vocabulary):
    """Kudo & Richardson 2018: pieces by unigram language model or byte pair encoding, or characters."""

    def __init__(self, model: bytes, *, kind: str, normalization: str, lowercase: bool, verbatim: bool = False) -> None:
        super().__init__(normalization=normalization, lowercase=lowercase, verbatim=verbatim)
        self._kind = kind
        self._model = model
        self._processor = known = sentencepiece.SentencePieceProcessor(model_proto=model)
        if (known.pad_id(), known.unk_id(), known.bos_id(), known.eos_id()) != (PAD, UNK, BOS, EOS):
            raise ValueError("other special pieces than ours")

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    @property
    def kind(self) -> str:
        return self._kind

    def pieces(self, text: str) -> list[str]:
        return list(self._processor.encode(self.normalize(text), out_type=str))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        normalized = [self.normalize(text) for text in texts]
        return list(self._processor.encode(normalized, out_type=int, num_threads=1))

    def piece(self, index: int) -> str:
        return UNKNOWN if index == UNK else str(self._processor.id_to_piece(index))

    def body(self) -> bytes:
        return self._model


@final
class WordVocabulary(Vocabulary):
    """Words and punctuation as `alignment.words` splits them, each with the ▁ of the space before it."""

    def __init__(self, tokens: Sequence[str], *, normalization: str, lowercase: bool) -> None:
        super().__init__(normalization=normalization, lowercase=lowercase)
        self._tokens = [*SPECIALS, *tokens]
        self._ids = {token: index for index, token in enumerate(tokens, start=len(SPECIALS))}

    def __len__(self) -> int:
        return len(self._tokens)

    def pieces(self, text: str) -> list[str]:
        return word_pieces(self.normalize(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(piece, UNK) for piece in self.pieces(text)] for text in texts]

    def piece(self, index: int) -> str:
        return SPACE + UNKNOWN if index == UNK else self._tokens[index]

    def body(self) -> bytes:
        return "".join(f"{token}\n" for token in self._tokens[len(SPECIALS) :]).encode()


@final
class VerbatimVocabulary(Vocabulary):
    """Characters, or words and single marks, a word with the ▁ of one space before it; a text is its pieces joined."""

    def __init__(self, tokens: Sequence[str], *, kind: str, normalization: str, lowercase: bool) -> None:
        super().__init__(normalization=normalization, lowercase=lowercase, verbatim=True)
        self._kind = kind
        self._tokens = [*SPECIALS, *tokens]
        self._ids = {token: index for index, token in enumerate(tokens, start=len(SPECIALS))}

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def kind(self) -> str:
        return self._kind

    def pieces(self, text: str) -> list[str]:
        return verbatim_pieces(self.normalize(text), self._kind)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(piece, UNK) for piece in self.pieces(text)] for text in texts]

    def piece(self, index: int) -> str:
        return UNKNOWN if index == UNK else self._tokens[index]

    def body(self) -> bytes:
        return json.dumps(self._tokens[len(SPECIALS) :]).encode()


def load(path: Path) -> Vocabulary:
    """Read what `Vocabulary.save` wrote. Raises InputError on anything else."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("a directory, pipe or device")
        header, _, body = path.read_bytes().partition(b"\n")
        stored = parse_json(header)
        kind, size = stored["kind"], stored["size"]
        form = {"normalization": stored["normalization"], "lowercase": stored["lowercase"]}
        if kind not in KINDS or form["normalization"] not in NORMALIZATIONS or not isinstance(size, int) or size < 0:
            raise ValueError("not what is written")
        vocabulary: Vocabulary
        verbatim = stored.get("verbatim") is True
        if verbatim and kind in ("char", "word"):
            vocabulary = VerbatimVocabulary([str(token) for token in parse_json(body)], kind=kind, **form)
        elif kind == "word":
            vocabulary = WordVocabulary(body.decode().split("\n")[:-1], **form)
        else:
            vocabulary = SentencePieceVocabulary(body, kind=kind, verbatim=verbatim, **form)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} is not a vocabulary file of seqtool.") from error
    if len(vocabulary) != size:
        raise InputError(f"{path} is cut short: it has {len(vocabulary):,} of {size:,} entries.")
    return vocabulary


def save_all(directory: Path, vocabularies: Mapping[str, Vocabulary]) -> list[Path]:
    """Save the vocabulary of each side into the directory, one that serves both once; returns the files."""
    is_joint = vocabularies.get("source") is vocabularies["target"]
    named = {"joint": vocabularies["target"]} if is_joint else vocabularies
    files = {directory / f"{name}.vocabulary": vocabulary for name, vocabulary in named.items()}
    for path, vocabulary in files.items():
        vocabulary.save(path)
    return list(files)


def load_all(directory: Path, sides: Sequence[str]) -> dict[str, Vocabulary]:
    """The vocabularies that `save_all` wrote for these sides: source and target, or the target alone."""
    found = load_pair(directory) if "source" in sides else [load_target(directory)]
    return dict(zip(sides, found, strict=True))


def load_pair(directory: Path) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target; a joint one is one object."""
    if (directory / JOINT).exists():
        joint = load(directory / JOINT)
        return joint, joint
    if not (directory / SOURCE).exists() or not (directory / TARGET).exists():
        raise InputError(f"{directory} has no vocabularies: expected {SOURCE} and {TARGET}, or {JOINT}.")
    return load(directory / SOURCE), load(directory / TARGET)


def load_target(directory: Path) -> Vocabulary:
    """The one vocabulary of captions, or of a text."""
    if not (directory / TARGET).exists():
        raise InputError(f"{directory} has no vocabulary: expected {TARGET}.")
    return load(directory / TARGET)


def normalize(text: str, *, normalization: str, lowercase: bool, verbatim: bool = False) -> str:
    """Unicode normal form and case; white space of any kind, and ▁, become single spaces. Idempotent. Verbatim, white
    space stays as it is.
    """
    text = _unicode_form(text, normalization)
    if lowercase:
        text = _unicode_form(text.lower(), normalization)  # a normal text's lower case need not be normal
    text = text.replace(SPACE, " ")
    return text if verbatim else " ".join(text.split())


def _unicode_form(text: str, normalization: str) -> str:
    match normalization:
        case "nfc":
            return unicodedata.normalize("NFC", text)
        case "nfkc":
            return unicodedata.normalize("NFKC", text)
    return text


def verbatim_pieces(text: str, kind: str) -> list[str]:
    """The text cut into characters, or into words, other white space and marks; every space is written ▁."""
    pieces = list(text) if kind == "char" else re.findall(r" ?\w+| ?[^\w\s]|\s", text)
    return [piece.replace(" ", SPACE) for piece in pieces]


def word_pieces(text: str) -> list[str]:
    """The words of the text, ▁ before each that follows a space or begins the text."""
    return [piece for token in text.split() for piece in _token_pieces(token)]


@lru_cache(maxsize=1 << 16)
def _token_pieces(token: str) -> tuple[str, ...]:
    first, *rest = words(token)
    return (SPACE + first, *rest)
