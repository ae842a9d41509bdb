"""Learning a vocabulary from text."""

import io
import re
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sentencepiece

from seqtool.data.text.vocabulary import (
    BLOCK,
    SPECIALS,
    STAND_INS,
    SentencePieceVocabulary,
    Vocabulary,
    WordVocabulary,
    is_listed,
    listed_pieces,
    normalize,
)
from seqtool.errors import InputError
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.settings import declarations

PART = 2**14  # characters: longer lines are learnt from in parts; at most four bytes each
LONGEST = 4 * PART  # bytes: SentencePiece would leave out longer lines
THREADS = 4  # fixed: SentencePiece's sums, and so its last digits, depend on the number of threads


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

    def size_of(self, side: str | None) -> tuple[int, str]:
        """The size for `source`, `target` or None (joint), and the name of the setting that gives it."""
        own: int | None = getattr(self, f"{side}_size") if side else None
        return (self.size, "data.vocabulary.size") if own is None else (own, f"data.vocabulary.{side}_size")


def train(
    lines: Iterable[str], settings: VocabularySettings, *, side: str | None = None, verbatim: bool = False
) -> Vocabulary:
    """Learn a vocabulary from lines of text: of the source, of the target, or (None) of both together. If verbatim,
    the lines include their line ends.

    The same lines and settings give the same vocabulary. Raises InputError if the text has nothing to learn
    from, cannot fill the size asked for, or does not fit into it.
    """
    settings.check()
    size, setting = settings.size_of(side)
    form: dict[str, Any] = {
        "normalization": settings.normalization,
        "lowercase": settings.lowercase,
        "verbatim": verbatim,
    }
    normalized = (text for line in lines if (text := normalize(line, **form)))
    if is_listed(settings.kind, verbatim=verbatim):
        tokens = _frequent(normalized, settings, size, verbatim=verbatim)
        return WordVocabulary(tokens, kind=settings.kind, **form)
    try:
        model = _learn_pieces(list(normalized), settings.kind, size, verbatim=verbatim)
    except RuntimeError as error:
        text = f"the {side} side of the training text" if side else "the training text"
        problem = _problem(str(error), f"{setting}={size:,}", text)
        if problem is None:
            raise
        raise InputError(problem) from error
    return SentencePieceVocabulary(model, kind=settings.kind, **form)


def _frequent(lines: Iterable[str], settings: VocabularySettings, size: int, *, verbatim: bool) -> list[str]:
    """The pieces by decreasing count, then in alphabetical order."""
    pieces = (listed_pieces(line, settings.kind, verbatim=verbatim) for line in lines)
    counts = Counter(chain.from_iterable(pieces))
    frequent = [word for word, count in counts.items() if count >= settings.minimum_count]
    if not frequent:
        what = "symbol" if verbatim else "word"
        raise InputError(
            f"No {what} occurs data.vocabulary.minimum_count={settings.minimum_count} times in the training text: "
            "nothing can be learnt from it."
        )
    frequent.sort(key=lambda word: (-counts[word], word))
    return frequent[: size - len(SPECIALS)]


def _learn_pieces(lines: list[str], kind: str, size: int, *, verbatim: bool) -> bytes:
    """SentencePiece's model file; normalisation is ours, so SentencePiece's is the identity."""
    characters = set().union(*lines)
    if not characters:
        raise InputError("The training text has no words: nothing can be learnt from it.")
    model = io.BytesIO()
    form: dict[str, Any] = {}
    if verbatim:
        whole = (line.removesuffix("\n") for line in lines)
        lines = [line[start : start + PART] for line in whole for start in range(0, max(1, len(line)), PART)]
        ends = [end for end in "\n\r" if end == "\n" or end in characters]  # SentencePiece strips these off lines
        form = {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "user_defined_symbols": ends}
    else:
        lines = [part for line in lines for part in _parts(line)]
    if characters & STAND_INS.keys():
        table = str.maketrans(STAND_INS)
        lines = [line.translate(table) for line in lines]
    if any(special in line for line in lines for special in SPECIALS):  # whose characters would not be learnt
        names = ("pad_piece", "unk_piece", "bos_piece", "eos_piece")
        form |= {name: f"{BLOCK}{special}" for name, special in zip(names, SPECIALS, strict=True)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        # SentencePiece's advice: every character of a small alphabet, most of a large one (Chinese, the web).
        character_coverage=1.0 if kind == "char" or len(characters) <= size // 4 else 0.9995,
        normalization_rule_name="identity",
        max_sentence_length=LONGEST,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        num_threads=THREADS,
        minloglevel=2,  # errors only: they come back as exceptions too
        **form,
    )
    return model.getvalue()


def _parts(line: str) -> list[str]:
    """The line, cut at spaces if it is too long for SentencePiece."""
    if len(line) <= PART or len(line.encode()) <= LONGEST:
        return [line]
    return textwrap.wrap(line, PART, break_on_hyphens=False)


def _problem(message: str, size: str, text: str) -> str | None:
    """SentencePiece's message in terms of the settings; None for any other message."""
    if match := re.search(r"size too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return f"{size} is more than is possible with {text}: set it to {int(match[1]):,} or less."
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return f"{size} has no room for the characters of {text}: set it to {int(match[1]):,} or more."
    if "sentences_.empty()" in message:
        return "SentencePiece can learn nothing from the training text: use data.vocabulary.kind=char."
    return None
